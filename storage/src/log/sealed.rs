//! Keys and values of the log as they are stored.

use bytes::Bytes;
use quorate_domain::StorageError;

/// A stored value: the checksum of key and bytes, then the bytes.
pub fn seal(key: &[u8], bytes: &[u8], sealed: &mut Vec<u8>) {
    sealed.clear();
    sealed.extend(checksum(key, bytes).to_le_bytes());
    sealed.extend(bytes);
}

pub fn unseal(key: &[u8], sealed: &[u8]) -> Result<Bytes, StorageError> {
    match sealed.split_first_chunk() {
        Some((stored, bytes)) if *stored == checksum(key, bytes).to_le_bytes() => Ok(Bytes::copy_from_slice(bytes)),
        _ => Err(StorageError::corrupt(format!("the value of key {} in the log does not have its checksum", hex::encode(key)))),
    }
}

fn checksum(key: &[u8], bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(key), bytes)
}

pub fn index_of(key: &[u8]) -> Result<u64, StorageError> {
    let key =
        key.try_into().map_err(|_| StorageError::corrupt(format!("the log holds the key {}, which is no index", hex::encode(key))))?;
    Ok(u64::from_be_bytes(key))
}
