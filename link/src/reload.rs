//! What is built of files, and built anew when they change.
//!
//! Renewing a certificate writes two or three files one after the other, so what stands there for a moment may not fit
//! together. Whatever can't be built is told once, in the log and in a counter, and tried again; until it can, the old one goes on.

use std::fmt::Display;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::time::{Duration, SystemTime};

use crate::files::FileError;

/// How often the files are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// A certificate that ends sooner is warned of.
const WARN_WITHIN: Duration = Duration::from_secs(14 * 24 * 60 * 60);
/// Between two such warnings.
const WARN_EVERY: Duration = Duration::from_secs(60 * 60);

/// Something with an end.
pub trait Expires {
    /// What ends, and when.
    fn ends(&self) -> Vec<(&'static str, SystemTime)>;
}

/// How long a certificate still lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expiry {
    /// `link`, `link_ca` or `front`.
    pub certificate: &'static str,
    /// Negative once it has ended.
    pub left_s: i64,
}

/// The metrics of some certificates, in Prometheus' text form; nothing where there are none.
pub fn exposition(expiries: &[Expiry], failures: u64) -> String {
    if expiries.is_empty() {
        return String::new();
    }
    let mut text = String::from(
        "# HELP quorate_tls_certificate_left_seconds Seconds until a certificate expires; negative once it has.\n\
         # TYPE quorate_tls_certificate_left_seconds gauge\n",
    );
    for Expiry { certificate, left_s } in expiries {
        text += &format!("quorate_tls_certificate_left_seconds{{certificate=\"{certificate}\"}} {left_s}\n");
    }
    text + &format!(
        "# HELP quorate_tls_reload_failures_total Changed certificate files that could not be used.\n\
         # TYPE quorate_tls_reload_failures_total counter\n\
         quorate_tls_reload_failures_total {failures}\n"
    )
}

/// Identity, size and time of each file.
type Stamp = Vec<Option<(u64, u64, i64, i64)>>;
type Build<T> = Box<dyn Fn() -> Result<T, FileError> + Send + Sync>;

/// The newest of its kind that could be built.
pub struct Reloading<T> {
    paths: Vec<PathBuf>,
    build: Build<T>,
    now: RwLock<Arc<T>>,
    failures: AtomicU64,
}

impl<T: Expires + Send + Sync + 'static> Reloading<T> {
    /// Builds it once, and from then on whenever one of the files changes. Has to be called inside a Tokio runtime.
    pub(crate) fn open(paths: Vec<PathBuf>, build: Build<T>) -> Result<Arc<Self>, FileError> {
        let stamp = stamp(&paths);
        let now = RwLock::new(Arc::new(build()?));
        let opened = Arc::new(Self { paths, build, now, failures: AtomicU64::new(0) });
        tokio::spawn(watch(Arc::downgrade(&opened), stamp));
        Ok(opened)
    }

    pub fn now(&self) -> Arc<T> {
        Arc::clone(&self.now.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn expiries(&self) -> Vec<Expiry> {
        let at = SystemTime::now();
        let left = |end: SystemTime| match end.duration_since(at) {
            Ok(left) => left.as_secs() as i64,
            Err(over) => -(over.duration().as_secs() as i64),
        };
        self.now().ends().into_iter().map(|(certificate, end)| Expiry { certificate, left_s: left(end) }).collect()
    }

    /// How often changed files could not be used.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    fn replace(&self) -> Result<(), FileError> {
        let new = Arc::new((self.build)()?);
        *self.now.write().unwrap_or_else(PoisonError::into_inner) = new;
        Ok(())
    }

    fn names(&self) -> impl Display + use<T> {
        self.paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
    }

    fn warn(&self) {
        for Expiry { certificate, left_s } in self.expiries() {
            let days_left = left_s.div_euclid(24 * 60 * 60);
            if left_s <= 0 {
                tracing::error!(certificate, files = %self.names(), "a certificate has expired and is refused by everybody: `quorate cert renew`");
            } else if left_s < WARN_WITHIN.as_secs() as i64 {
                tracing::warn!(certificate, days_left, files = %self.names(), "a certificate expires soon: `quorate cert renew`");
            }
        }
    }
}

fn stamp(paths: &[PathBuf]) -> Stamp {
    let of = |path: &PathBuf| fs::metadata(path).ok().map(|file| (file.ino(), file.size(), file.mtime(), file.mtime_nsec()));
    paths.iter().map(of).collect()
}

async fn watch<T: Expires + Send + Sync + 'static>(of: Weak<Reloading<T>>, mut built: Stamp) {
    // What was told to be unfit.
    let mut refused = Stamp::new();
    let mut warned = None::<tokio::time::Instant>;
    loop {
        {
            let Some(of) = of.upgrade() else { return };
            let found = stamp(&of.paths);
            if found != built {
                match of.replace() {
                    Ok(()) => {
                        tracing::info!(files = %of.names(), "new certificates are in use");
                        built = found;
                        warned = None;
                    }
                    Err(error) => {
                        if refused != found {
                            of.failures.fetch_add(1, Ordering::Relaxed);
                            tracing::error!(error = %error, "changed certificates can't be used; the old ones go on");
                            refused = found;
                        }
                    }
                }
            }
            if warned.is_none_or(|at| at.elapsed() > WARN_EVERY) {
                of.warn();
                warned = Some(tokio::time::Instant::now());
            }
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
