//! A library for `LD_PRELOAD`: functions that stand in front of those of the C library and make faults of disk and clock, as
//! `quorate-chaos-faults` describes them. Each does its part and then makes the system call itself; none calls another one of these,
//! and none allocates, so that they can be called at any moment of a process's life. Linux only; elsewhere it is empty.
#![cfg(target_os = "linux")]
#![allow(unsafe_code, reason = "functions of the C library are replaced, which can't be said in safe Rust")]

use std::ffi::CStr;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use libc::{c_char, c_int, c_long, c_void, iovec, mode_t, off_t, size_t, ssize_t, timespec};

use quorate_chaos_faults::{CONTROL_FILE, Counter, DATA, FAULTS, LEDGER_FILE, PAGE_BYTES, Switch, record};

static START: Once = Once::new();
/// The shared page, once it is there.
static PAGE: AtomicPtr<AtomicU64> = AtomicPtr::new(std::ptr::null_mut());
/// Where the ledger is written to.
static LEDGER: AtomicI32 = AtomicI32::new(-1);
/// The folder whose files are concerned, as the process's own environment holds it.
static FOLDER: AtomicPtr<c_char> = AtomicPtr::new(std::ptr::null_mut());
static FOLDER_LENGTH: AtomicUsize = AtomicUsize::new(0);

const FILES_MAX: usize = 1 << 16;
/// Which open files are concerned.
static CONCERNED: [AtomicBool; FILES_MAX] = [const { AtomicBool::new(false) }; FILES_MAX];

/// Opens page and ledger, once, as soon as the environment can be read.
fn start() {
    START.call_once(|| {
        // SAFETY: the names end with a zero byte; what `getenv` gives lives as long as nobody changes the variable, which nobody does.
        unsafe {
            let name = |name: &str, into: &mut [u8; 64]| {
                into[..name.len()].copy_from_slice(name.as_bytes());
            };
            let (mut faults, mut data) = ([0; 64], [0; 64]);
            name(FAULTS, &mut faults);
            name(DATA, &mut data);
            let (faults, data) = (libc::getenv(faults.as_ptr().cast()), libc::getenv(data.as_ptr().cast()));
            if faults.is_null() || data.is_null() {
                return;
            }
            let faults = CStr::from_ptr(faults).to_bytes();
            let Some(control) = open_in(faults, CONTROL_FILE, libc::O_RDWR | libc::O_CLOEXEC) else { return };
            let page = libc::mmap(std::ptr::null_mut(), PAGE_BYTES, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, control, 0);
            if page == libc::MAP_FAILED {
                return;
            }
            let ledger = libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT | libc::O_CLOEXEC;
            LEDGER.store(open_in(faults, LEDGER_FILE, ledger).unwrap_or(-1), Ordering::SeqCst);
            FOLDER.store(data, Ordering::SeqCst);
            FOLDER_LENGTH.store(CStr::from_ptr(data).count_bytes(), Ordering::SeqCst);
            PAGE.store(page.cast(), Ordering::SeqCst);
        }
    });
}

/// Opens a file of a folder past everything here.
unsafe fn open_in(folder: &[u8], name: &str, flags: c_int) -> Option<c_int> {
    let mut path = [0_u8; libc::PATH_MAX as usize];
    let length = folder.len() + 1 + name.len();
    if length >= path.len() {
        return None;
    }
    path[..folder.len()].copy_from_slice(folder);
    path[folder.len()] = b'/';
    path[folder.len() + 1..length].copy_from_slice(name.as_bytes());
    // SAFETY: the path ends with a zero byte.
    let file = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, 0o600) };
    (file >= 0).then_some(file as c_int)
}

fn word(place: usize) -> Option<&'static AtomicU64> {
    let page = PAGE.load(Ordering::Relaxed);
    // SAFETY: the page stays mapped for ever, is aligned, and every place that is asked for lies in it.
    (!page.is_null()).then(|| unsafe { &*page.add(place) })
}

fn switch(switch: Switch) -> u64 {
    word(switch as usize).map_or(0, |word| word.load(Ordering::Relaxed))
}

fn count(counter: Counter) {
    if let Some(word) = word(counter as usize) {
        word.fetch_add(1, Ordering::Relaxed);
    }
}

fn is_concerned(file: c_int) -> bool {
    usize::try_from(file).ok().and_then(|file| CONCERNED.get(file)).is_some_and(|is| is.load(Ordering::Relaxed))
}

fn concern(file: c_int, is: bool) {
    if let Some(slot) = usize::try_from(file).ok().and_then(|file| CONCERNED.get(file)) {
        slot.store(is, Ordering::Relaxed);
    }
}

fn fail(error: c_int) -> c_int {
    // SAFETY: this is where the calling thread's error number lives.
    unsafe { *libc::__errno_location() = error };
    -1
}

/// Device, inode and length of an open file, if it is a plain one.
fn about(file: c_int) -> Option<(u64, u64, u64)> {
    // SAFETY: all zeroes are a valid value of it, and the call fills it.
    let (outcome, stat) = unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        (libc::syscall(libc::SYS_fstat, file, &raw mut stat), stat)
    };
    (outcome == 0 && stat.st_mode & libc::S_IFMT == libc::S_IFREG).then_some((stat.st_dev, stat.st_ino, stat.st_size as u64))
}

fn note(file: c_int) {
    let ledger = LEDGER.load(Ordering::Relaxed);
    if let Some((device, inode, length)) = about(file).filter(|_| ledger >= 0) {
        let record = record(device, inode, length);
        // SAFETY: the buffer is as long as is said. One short appending write is not interleaved with others.
        unsafe { libc::syscall(libc::SYS_write, ledger, record.as_ptr(), record.len()) };
    }
}

// -------- opening and closing

/// # Safety
/// As `openat(2)`.
unsafe fn open_at(folder: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    start();
    // SAFETY: the caller's arguments, as they came.
    let file = unsafe { libc::syscall(libc::SYS_openat, folder, path, flags, mode) } as c_int;
    if file < 0 {
        return file;
    }
    let (prefix, length) = (FOLDER.load(Ordering::Relaxed), FOLDER_LENGTH.load(Ordering::Relaxed));
    // SAFETY: both are strings that end with a zero byte, at which the comparison stops.
    let is = !prefix.is_null() && unsafe { libc::strncmp(path, prefix, length) == 0 };
    concern(file, is);
    // An inode that belonged to a file that is gone begins anew.
    if is && flags & (libc::O_CREAT | libc::O_TRUNC) != 0 && about(file).is_some_and(|(_, _, length)| length == 0) {
        note(file);
    }
    file
}

macro_rules! opens {
    ($($name:ident),+) => {$(
        /// # Safety
        /// As `open(2)`. The mode is read only where the caller gave one; variadic integers are passed as others are.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
            // SAFETY: as the caller promised.
            unsafe { open_at(libc::AT_FDCWD, path, flags, mode) }
        }
    )+};
}
opens!(open, open64);

macro_rules! opens_at {
    ($($name:ident),+) => {$(
        /// # Safety
        /// As `openat(2)`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(folder: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
            // SAFETY: as the caller promised.
            unsafe { open_at(folder, path, flags, mode) }
        }
    )+};
}
opens_at!(openat, openat64);

/// # Safety
/// As `close(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close(file: c_int) -> c_int {
    concern(file, false);
    // SAFETY: the caller's argument, as it came.
    unsafe { libc::syscall(libc::SYS_close, file) as c_int }
}

// -------- writing

fn has_no_space(file: c_int) -> bool {
    let refuses = switch(Switch::NoSpace) != 0 && is_concerned(file);
    if refuses {
        count(Counter::WritesRefused);
    }
    refuses
}

/// # Safety
/// As `write(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn write(file: c_int, bytes: *const c_void, length: size_t) -> ssize_t {
    if has_no_space(file) {
        return fail(libc::ENOSPC) as ssize_t;
    }
    // SAFETY: the caller's arguments, as they came.
    unsafe { libc::syscall(libc::SYS_write, file, bytes, length) as ssize_t }
}

/// # Safety
/// As `writev(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn writev(file: c_int, parts: *const iovec, length: c_int) -> ssize_t {
    if has_no_space(file) {
        return fail(libc::ENOSPC) as ssize_t;
    }
    // SAFETY: the caller's arguments, as they came.
    unsafe { libc::syscall(libc::SYS_writev, file, parts, length) as ssize_t }
}

macro_rules! writes_at {
    ($($name:ident),+) => {$(
        /// # Safety
        /// As `pwrite(2)`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(file: c_int, bytes: *const c_void, length: size_t, at: off_t) -> ssize_t {
            if has_no_space(file) {
                return fail(libc::ENOSPC) as ssize_t;
            }
            // SAFETY: the caller's arguments, as they came.
            unsafe { libc::syscall(libc::SYS_pwrite64, file, bytes, length, at) as ssize_t }
        }
    )+};
}
writes_at!(pwrite, pwrite64);

macro_rules! allocates {
    ($($name:ident),+) => {$(
        /// # Safety
        /// As `fallocate(2)`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(file: c_int, mode: c_int, at: off_t, length: off_t) -> c_int {
            if has_no_space(file) {
                return fail(libc::ENOSPC);
            }
            // SAFETY: the caller's arguments, as they came.
            unsafe { libc::syscall(libc::SYS_fallocate, file, mode, at, length) as c_int }
        }
    )+};
}
allocates!(fallocate, fallocate64);

// -------- syncing

fn pause(us: u64) {
    let mut rest = timespec { tv_sec: (us / 1_000_000) as i64, tv_nsec: (us % 1_000_000 * 1_000) as c_long };
    // SAFETY: both point to the same valid value, which the call may write what is left into; a signal starts it again.
    while unsafe { libc::nanosleep(&raw const rest, &raw mut rest) } != 0 {}
}

fn sync(call: c_long, file: c_int) -> c_int {
    if !is_concerned(file) {
        // SAFETY: the caller's argument, as it came.
        return unsafe { libc::syscall(call, file) as c_int };
    }
    let delay_us = switch(Switch::SyncDelayUs);
    if delay_us > 0 {
        count(Counter::SyncsDelayed);
        pause(delay_us);
    }
    if switch(Switch::SyncHangs) != 0 {
        count(Counter::SyncsHung);
        while switch(Switch::SyncHangs) != 0 {
            pause(1_000);
        }
    }
    let error = switch(Switch::SyncFailsWith);
    if error != 0 {
        count(Counter::SyncsFailed);
        return fail(error as c_int);
    }
    if switch(Switch::NoSpace) != 0 && has_no_space(file) {
        return fail(libc::ENOSPC);
    }
    // The length before the call: what another thread writes meanwhile may not be in it.
    let before = about(file);
    // SAFETY: the caller's argument, as it came.
    let outcome = unsafe { libc::syscall(call, file) as c_int };
    let ledger = LEDGER.load(Ordering::Relaxed);
    if let Some((device, inode, length)) = before.filter(|_| outcome == 0 && ledger >= 0) {
        let record = record(device, inode, length);
        // SAFETY: the buffer is as long as is said.
        unsafe { libc::syscall(libc::SYS_write, ledger, record.as_ptr(), record.len()) };
    }
    outcome
}

/// # Safety
/// As `fsync(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fsync(file: c_int) -> c_int {
    sync(libc::SYS_fsync, file)
}

/// # Safety
/// As `fdatasync(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdatasync(file: c_int) -> c_int {
    sync(libc::SYS_fdatasync, file)
}

// -------- the wall clock

/// # Safety
/// As `clock_gettime(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: libc::clockid_t, into: *mut timespec) -> c_int {
    // SAFETY: the caller's arguments, as they came.
    let outcome = unsafe { libc::syscall(libc::SYS_clock_gettime, clock, into) as c_int };
    if outcome == 0 && matches!(clock, libc::CLOCK_REALTIME | libc::CLOCK_REALTIME_COARSE) {
        let ahead_ms = switch(Switch::WallAheadMs) as i64;
        if ahead_ms != 0 {
            count(Counter::WallReadsShifted);
            // SAFETY: the call has just filled it.
            let time = unsafe { &mut *into };
            let ns = time.tv_nsec + ahead_ms.rem_euclid(1_000) * 1_000_000;
            time.tv_sec += ahead_ms.div_euclid(1_000) + ns.div_euclid(1_000_000_000);
            time.tv_nsec = ns.rem_euclid(1_000_000_000);
        }
    }
    outcome
}
