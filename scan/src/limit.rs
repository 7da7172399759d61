//! Every limit of a scan, in one place.

use std::time::Duration;

/// A file of source. What is larger was hardly written by hand.
pub const FILE_BYTES_MAX: u64 = 1 << 20;
/// How long one file may be parsed, and the whole tree be read.
pub const PARSE_WITHIN: Duration = Duration::from_secs(2);
pub const SCAN_WITHIN: Duration = Duration::from_secs(10 * 60);
/// Files of source in one tree, and entries of any sort.
pub const FILES_MAX: usize = 100_000;
pub const ENTRIES_MAX: usize = 5_000_000;
/// How deep folders go, and how long a path is.
pub const DEPTH_MAX: usize = 128;
pub const PATH_BYTES_MAX: usize = 512;
/// What is kept of one file.
pub const FUNCTIONS_MAX: usize = 5_000;
pub const CALLS_MAX: usize = 20_000;
pub const ROUTES_MAX: usize = 1_000;
pub const IMPORTS_MAX: usize = 2_000;
/// Modules of which one file brings in all, in the order in which it names them.
pub const GLOBS_MAX: usize = 32;
/// One `use` or `import`, as it is written.
pub const IMPORT_BYTES_MAX: usize = 16 << 10;
/// The name of a function, the path of a route, the line of a module's documentation.
pub const NAME_BYTES_MAX: usize = 200;
pub const DOC_CHARS_MAX: usize = 80;
/// Calls into other files that are kept of one file, those that are made most.
pub const EDGES_MAX: usize = 300;
/// Files below one route that its chain names.
pub const CHAIN_MAX: usize = 200;
/// The cache of one tree on disk.
pub const CACHE_BYTES_MAX: u64 = 512 << 20;
