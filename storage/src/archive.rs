//! Many files in one: a plain tar, which any tool opens, written and read so strictly that no flipped byte goes unnoticed.
//!
//! Every byte is either content, whose hash the reader answers and its caller compares, or it follows from the name, the size
//! and the time of a file: headers are compared with what the writer makes of those, and padding and end have to be zeros. So
//! the reader has to know which files to expect; it can't be made to write anywhere by a name.
//!
//! An archive is written beside its final name, synced, and gets the name only when [`Draft::publish`] is called, so that a
//! reader can check the whole of it before; it is readable by its owner alone, since it may hold keys.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use quorate_domain::StorageError;
use tar::{EntryType, Header};

use crate::durable::{at, sync_dir};

const BLOCK_BYTES: usize = 512;
/// Two blocks of zeros end a tar.
const END_BYTES: usize = 2 * BLOCK_BYTES;
const BUFFER_BYTES: usize = 1 << 20;

/// Why an archive can't be read.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    #[error("`{file}` in the archive is damaged: {problem}")]
    Damaged { file: String, problem: String },
    #[error(transparent)]
    Storage(#[from] StorageError),
}

fn damaged(file: &str, problem: impl Into<String>) -> ArchiveError {
    ArchiveError::Damaged { file: file.into(), problem: problem.into() }
}

/// The same for the same file, always.
fn header(name: &str, size_bytes: u64, time_unix_s: u64) -> io::Result<Header> {
    let mut header = Header::new_ustar();
    header.set_path(name)?;
    header.set_entry_type(EntryType::Regular);
    header.set_size(size_bytes);
    header.set_mode(0o600);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(time_unix_s);
    header.set_cksum();
    Ok(header)
}

/// BLAKE3 in hex, as the reader answers it.
pub fn hash(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_string()
}

/// The same of what comes in parts.
#[derive(Default)]
pub struct Hasher(blake3::Hasher);

impl Hasher {
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub fn hash(&self) -> String {
        self.0.finalize().to_string()
    }
}

fn padding(size_bytes: u64) -> usize {
    (BLOCK_BYTES - (size_bytes % BLOCK_BYTES as u64) as usize) % BLOCK_BYTES
}

/// An archive that is being written. Dropped without [`Writer::finish`], it leaves nothing.
pub struct Writer {
    draft: Draft,
    file: BufWriter<File>,
    time_unix_s: u64,
    /// Bytes that the file begun last still lacks, and the zeros behind it.
    missing: u64,
    padding: usize,
}

impl Writer {
    /// Begins an archive that is to be at `path`; `time_unix_s` is shown as the time of every file in it. Refuses a name that is
    /// taken: a backup must not cost another one.
    pub fn create(path: &Path, time_unix_s: u64) -> Result<Self, StorageError> {
        let mut draft_name = path.as_os_str().to_owned();
        draft_name.push(format!(".{}.partial", std::process::id()));
        let draft = Draft { path: path.to_owned(), draft: draft_name.into(), is_published: false };
        draft.check_free()?;
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&draft.draft)
            .map_err(at("create", &draft.draft))?;
        Ok(Self { draft, file: BufWriter::with_capacity(BUFFER_BYTES, file), time_unix_s, missing: 0, padding: 0 })
    }

    /// Begins a file of the archive; its content follows in [`Writer::write`].
    pub fn begin(&mut self, name: &str, size_bytes: u64) -> Result<(), StorageError> {
        self.end_file()?;
        let header = header(name, size_bytes, self.time_unix_s).map_err(self.failed())?;
        self.file.write_all(header.as_bytes()).map_err(self.failed())?;
        (self.missing, self.padding) = (size_bytes, padding(size_bytes));
        Ok(())
    }

    pub fn write(&mut self, bytes: &[u8]) -> Result<(), StorageError> {
        self.missing = self
            .missing
            .checked_sub(bytes.len() as u64)
            .ok_or_else(|| StorageError::corrupt("more bytes came for a file of the archive than were announced"))?;
        self.file.write_all(bytes).map_err(self.failed())
    }

    /// Ends the archive and puts it on disk, not yet under its name.
    pub fn finish(mut self) -> Result<Draft, StorageError> {
        self.end_file()?;
        self.file.write_all(&[0; END_BYTES]).and_then(|()| self.file.flush()).map_err(self.failed())?;
        self.file.get_ref().sync_all().map_err(self.failed())?;
        Ok(self.draft)
    }

    fn end_file(&mut self) -> Result<(), StorageError> {
        if self.missing > 0 {
            return Err(StorageError::corrupt(format!("{} bytes of a file of the archive did not come", self.missing)));
        }
        let zeros = std::mem::take(&mut self.padding);
        self.file.write_all(&[0; BLOCK_BYTES][..zeros]).map_err(self.failed())
    }

    fn failed(&self) -> impl FnOnce(io::Error) -> StorageError + use<> {
        at("write", &self.draft.draft)
    }
}

/// A whole archive beside its name. Dropped without [`Draft::publish`], it is removed.
#[derive(Debug)]
pub struct Draft {
    path: PathBuf,
    draft: PathBuf,
    is_published: bool,
}

impl Draft {
    /// Where it can be read now.
    pub fn place(&self) -> &Path {
        &self.draft
    }

    /// Gives it its name, for good.
    pub fn publish(mut self) -> Result<(), StorageError> {
        self.check_free()?;
        fs::rename(&self.draft, &self.path).map_err(at("rename", &self.draft))?;
        self.is_published = true;
        match self.path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => sync_dir(parent),
            _ => sync_dir(Path::new(".")),
        }
    }

    fn check_free(&self) -> Result<(), StorageError> {
        match fs::symlink_metadata(&self.path) {
            Ok(_) => Err(StorageError::corrupt(format!("{} is there already: name another file", self.path.display()))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(at("look at", &self.path)(error)),
        }
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.is_published {
            // What can't be removed is named `.partial`, which says enough.
            let _ = fs::remove_file(&self.draft);
        }
    }
}

/// An archive that is being read, file after file.
pub struct Reader {
    path: PathBuf,
    file: BufReader<File>,
    time_unix_s: Option<u64>,
}

impl Reader {
    pub fn open(path: &Path) -> Result<Self, ArchiveError> {
        let file = File::open(path).map_err(at("open", path))?;
        Ok(Self { path: path.to_owned(), file: BufReader::with_capacity(BUFFER_BYTES, file), time_unix_s: None })
    }

    /// The time that every file shows; known once the first was read.
    pub fn time_unix_s(&self) -> Option<u64> {
        self.time_unix_s
    }

    /// The next file, which is to have that name and at most so many bytes.
    pub fn small(&mut self, name: &str, bytes_max: usize) -> Result<Vec<u8>, ArchiveError> {
        let mut found = Header::new_ustar();
        self.exactly(name, found.as_mut_bytes())?;
        let size = found.entry_size().map_err(|_| damaged(name, "its header can't be read"))?;
        let time = found.mtime().map_err(|_| damaged(name, "its header can't be read"))?;
        if size > bytes_max as u64 {
            return Err(damaged(name, format!("its header names {size} bytes, and it has at most {bytes_max}")));
        }
        let mut bytes = Vec::new();
        let time = *self.time_unix_s.get_or_insert(time);
        self.check_header(name, size, time, &found)?;
        self.content(name, size, &mut bytes)?;
        Ok(bytes)
    }

    /// The next file, which is to have that name and size. Writes it to `to` and answers its hash (BLAKE3, in hex).
    pub fn file(&mut self, name: &str, size_bytes: u64, to: &mut dyn Write) -> Result<String, ArchiveError> {
        let mut found = Header::new_ustar();
        self.exactly(name, found.as_mut_bytes())?;
        self.check_header(name, size_bytes, self.time_unix_s.unwrap_or_default(), &found)?;
        self.content(name, size_bytes, to)
    }

    /// Nothing but the end may follow.
    pub fn end(mut self) -> Result<(), ArchiveError> {
        const NAME: &str = "the end";
        let mut end = [0; END_BYTES];
        self.exactly(NAME, &mut end)?;
        let mut more = [0; 1];
        let behind = self.file.read(&mut more).map_err(at("read", &self.path))?;
        if end.iter().any(|byte| *byte != 0) || behind > 0 {
            return Err(damaged(NAME, "something stands there"));
        }
        Ok(())
    }

    fn check_header(&self, name: &str, size_bytes: u64, time_unix_s: u64, found: &Header) -> Result<(), ArchiveError> {
        let wanted = header(name, size_bytes, time_unix_s).map_err(at("name a file of", &self.path))?;
        match wanted.as_bytes() == found.as_bytes() {
            true => Ok(()),
            false => Err(damaged(name, "its header is not what was written")),
        }
    }

    fn content(&mut self, name: &str, size_bytes: u64, to: &mut dyn Write) -> Result<String, ArchiveError> {
        let mut hasher = blake3::Hasher::new();
        let mut left = size_bytes;
        let mut buffer = vec![0; BUFFER_BYTES.min(size_bytes as usize)];
        while left > 0 {
            let part = BUFFER_BYTES.min(left as usize);
            self.exactly(name, &mut buffer[..part])?;
            hasher.update(&buffer[..part]);
            to.write_all(&buffer[..part]).map_err(at("unpack", &self.path))?;
            left -= part as u64;
        }
        let mut zeros = [0; BLOCK_BYTES];
        let zeros = &mut zeros[..padding(size_bytes)];
        self.exactly(name, zeros)?;
        if zeros.iter().any(|byte| *byte != 0) {
            return Err(damaged(name, "what fills its last block is not zeros"));
        }
        Ok(hasher.finalize().to_string())
    }

    fn exactly(&mut self, name: &str, buffer: &mut [u8]) -> Result<(), ArchiveError> {
        match self.file.read_exact(buffer) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(damaged(name, "the archive ends before it does")),
            Err(error) => Err(at("read", &self.path)(error).into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: &Path) -> Draft {
        let mut writer = Writer::create(path, 1_900_000_000).unwrap();
        for (name, content) in [("manifest.json", &b"{}"[..]), ("state/000012.sst", &[7; 1_000]), ("state/CURRENT", b"")] {
            writer.begin(name, content.len() as u64).unwrap();
            content.chunks(300).for_each(|chunk| writer.write(chunk).unwrap());
        }
        writer.finish().unwrap()
    }

    fn read(path: &Path) -> Result<(), ArchiveError> {
        let mut reader = Reader::open(path)?;
        let manifest = reader.small("manifest.json", 100)?;
        let mut table = Vec::new();
        let hash = reader.file("state/000012.sst", 1_000, &mut table)?;
        reader.file("state/CURRENT", 0, &mut io::sink())?;
        // What the caller has hashes of.
        if manifest != b"{}" || hash != blake3::hash(&[7; 1_000]).to_string() || reader.time_unix_s() != Some(1_900_000_000) {
            return Err(damaged("content", "hash"));
        }
        reader.end()
    }

    #[test]
    fn an_archive_has_its_name_only_when_it_is_published_and_never_takes_anothers() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("backup.tar");
        drop(write(&path));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "a draft that was given up leaves nothing");
        let draft = write(&path);
        read(draft.place()).unwrap();
        assert!(!path.exists());
        draft.publish().unwrap();
        read(&path).unwrap();
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(Writer::create(&path, 1).err().unwrap().to_string().contains("is there already"));
    }

    #[test]
    fn an_ordinary_tar_reader_finds_every_file() {
        let dir = tempfile::tempdir().unwrap();
        let draft = write(&dir.path().join("backup.tar"));
        let mut tar = tar::Archive::new(File::open(draft.place()).unwrap());
        let found: Vec<_> = tar
            .entries()
            .unwrap()
            .map(|entry| entry.unwrap())
            .map(|entry| (entry.path().unwrap().display().to_string(), entry.size()))
            .collect();
        assert_eq!(found, [("manifest.json".into(), 2), ("state/000012.sst".to_string(), 1_000), ("state/CURRENT".into(), 0)]);
    }

    #[test]
    fn no_flipped_byte_and_no_cut_goes_unnoticed() {
        let dir = tempfile::tempdir().unwrap();
        let draft = write(&dir.path().join("backup.tar"));
        let whole = fs::read(draft.place()).unwrap();
        let copy = dir.path().join("copy");
        // No divisor of a block's size, so every place in a header has its turn over the headers.
        for at in (0..whole.len()).step_by(7) {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x20;
            fs::write(&copy, &bytes).unwrap();
            assert!(read(&copy).is_err(), "byte {at} was flipped");
        }
        for len in (0..whole.len()).step_by(100) {
            fs::write(&copy, &whole[..len]).unwrap();
            assert!(read(&copy).is_err(), "{len} bytes are left");
        }
        fs::write(&copy, [whole.as_slice(), b"x"].concat()).unwrap();
        assert!(read(&copy).is_err(), "one byte more");
    }

    #[test]
    fn a_file_that_is_not_as_long_as_announced_is_a_fault() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = Writer::create(&dir.path().join("a"), 1).unwrap();
        writer.begin("x", 3).unwrap();
        assert!(writer.write(b"four").is_err());
        let mut writer = Writer::create(&dir.path().join("b"), 1).unwrap();
        writer.begin("x", 3).unwrap();
        writer.write(b"ab").unwrap();
        assert!(writer.finish().is_err());
    }
}
