//! Makes this process repeatable: randomness from a seed, and time from the simulation.
//!
//! Hash maps, `rand`, UUIDs, and the order in which a `select!` of a library looks at its branches all draw from the operating
//! system in the end, through the C library's `getrandom`; and what does not ask Tokio for the time asks `clock_gettime`. This
//! module takes the place of these two functions, for the whole executable it is linked into. Until [`enter`] is called they
//! answer as the operating system does; afterwards they answer from the seed and from [`set_elapsed`], for ever: hence one process
//! for each simulation, in which even what libraries count per process begins anew.
//!
//! The other way would be to hand a generator and a clock to every library. Some have no place for it (Tokio's needs another
//! compiler flag for the whole workspace), and one that was forgotten would show only as a run that can't be repeated.

#![expect(unsafe_code, reason = "functions of the C library can be replaced by name only, and hand out raw pointers")]

use std::ffi::{c_int, c_uint, c_void};
use std::slice;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use rustix::rand::GetRandomFlags;
use rustix::time::{ClockId, clock_gettime as of_system};

static SIMULATED: AtomicBool = AtomicBool::new(false);
/// The state of a SplitMix64: good enough to seed better generators, and with no state to take out under a lock.
static RANDOM: AtomicU64 = AtomicU64::new(0);
static ELAPSED_NS: AtomicU64 = AtomicU64::new(0);

/// Where the monotonic clock stands when a simulation begins: far enough from zero that spans can be taken off it.
const MONOTONIC_BASE: Duration = Duration::from_secs(1_000_000);
/// Where the wall clock stands then: 1 January 2026.
pub const WALL_BASE: Duration = Duration::from_secs(1_767_225_600);

/// From here on, nothing in this process is left to chance. Fails if the two functions are not the ones that the process calls.
pub fn enter(seed: u64) -> Result<(), String> {
    RANDOM.store(seed, SeqCst);
    SIMULATED.store(true, SeqCst);
    let wall = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    if wall != WALL_BASE {
        return Err("the standard library does not take its time from the simulation".into());
    }
    let drawn = RANDOM.load(SeqCst);
    let _ = uuid::Uuid::new_v4();
    if RANDOM.load(SeqCst) == drawn {
        return Err("random numbers do not come from the seed".into());
    }
    Ok(())
}

/// Moves every clock of the process.
pub fn set_elapsed(elapsed: Duration) {
    ELAPSED_NS.store(elapsed.as_nanos() as u64, SeqCst);
}

/// Simulated time since the beginning.
pub fn elapsed() -> Duration {
    Duration::from_nanos(ELAPSED_NS.load(SeqCst))
}

fn next_random() -> u64 {
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut word = RANDOM.fetch_add(STEP, SeqCst).wrapping_add(STEP);
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// # Safety
/// As getrandom(2) has it: `buffer` points to `length` writable bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn getrandom(buffer: *mut c_void, length: usize, flags: c_uint) -> isize {
    if buffer.is_null() || length == 0 {
        return 0;
    }
    // SAFETY: by the contract of this function.
    let bytes = unsafe { slice::from_raw_parts_mut(buffer.cast::<u8>(), length) };
    if SIMULATED.load(SeqCst) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&next_random().to_le_bytes()[..chunk.len()]);
        }
        return length as isize;
    }
    // Straight to the kernel, past the function that this one replaces.
    rustix::rand::getrandom(bytes, GetRandomFlags::from_bits_retain(flags)).map_or(-1, |filled| filled as isize)
}

#[repr(C)]
struct Timespec {
    seconds: i64,
    nanoseconds: i64,
}

/// # Safety
/// As clock_gettime(2) has it: `time` points to a timespec.
#[unsafe(no_mangle)]
unsafe extern "C" fn clock_gettime(clock: c_int, time: *mut Timespec) -> c_int {
    const REALTIME: c_int = 0;
    const REALTIME_COARSE: c_int = 5;
    let (seconds, nanoseconds) = if SIMULATED.load(SeqCst) {
        let base = if clock == REALTIME || clock == REALTIME_COARSE { WALL_BASE } else { MONOTONIC_BASE };
        let now = base + elapsed();
        (now.as_secs() as i64, i64::from(now.subsec_nanos()))
    } else {
        let Some(now) = clock_id(clock).map(of_system) else { return -1 };
        (now.tv_sec, now.tv_nsec)
    };
    // SAFETY: by the contract of this function.
    unsafe { time.write(Timespec { seconds, nanoseconds }) };
    0
}

/// The clocks by the numbers that Linux gives them.
fn clock_id(number: c_int) -> Option<ClockId> {
    Some(match number {
        0 => ClockId::Realtime,
        1 => ClockId::Monotonic,
        2 => ClockId::ProcessCPUTime,
        3 => ClockId::ThreadCPUTime,
        4 => ClockId::MonotonicRaw,
        5 => ClockId::RealtimeCoarse,
        6 => ClockId::MonotonicCoarse,
        7 => ClockId::Boottime,
        _ => return None,
    })
}
