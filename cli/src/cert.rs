//! `quorate cert`: an authority for a cluster, and the certificates of its nodes, gateways and operators.
//!
//! All of it is files in one folder: `ca.pem` and `ca.key`, and `NAME.pem` and `NAME.key` for each holder. Nothing is
//! overwritten: what is there already and is what was asked for counts as done, anything else is refused. Only `renew` replaces a
//! certificate, in one step, under the same key and for the same names. A key is written before its certificate, so that a verb
//! that was interrupted goes on with it.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::Context;
use clap::{Args, Subcommand};
use quorate_link::{Certificate, Name, Role, authority, cluster_of_authority};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose as Usage, IsCa, Issuer, KeyPair, KeyUsagePurpose, SanType,
};
use serde_json::{Value, json};
use tokio_rustls::rustls::pki_types::ServerName;

use crate::exit::Failure;
use crate::output;

/// The authority's names in its folder.
const CA: &str = "ca";
pub const CA_DAYS: u32 = 3_650;
pub const DAYS: u32 = 365;
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// Clocks of a cluster may differ by so much.
const CLOCKS_DIFFER: Duration = Duration::from_secs(60 * 60);

#[derive(Subcommand)]
pub enum Cert {
    /// Make the authority of a cluster; its key signs everything else, and belongs on no server
    Ca(Ca),
    /// Make a node's certificate
    Node(Issue),
    /// Make a gateway's certificate, towards the nodes and for its clients
    Gateway(Issue),
    /// Make an operator's certificate, for `quorate status --nodes ...` and the other verbs
    Operator(Issue),
    /// Make a certificate anew that ends soon, for the same key and names; running processes take it up by themselves
    Renew(Renew),
    /// Show the certificates of a folder and when they end
    List(List),
}

/// Make the authority of a cluster.
#[derive(Args)]
pub struct Ca {
    /// Id of the cluster: lowercase letters, digits and hyphens
    #[arg(long)]
    cluster: String,
    /// How long it lasts; everything has to be made anew when it ends
    #[arg(long, default_value_t = CA_DAYS)]
    days: u32,
    #[command(flatten)]
    folder: Folder,
}

#[derive(Args)]
pub struct Folder {
    /// Folder of the certificates
    #[arg(long = "dir", env = "QUORATE_CERTS", default_value = ".quorate/certs")]
    dir: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
}

/// Make a certificate.
#[derive(Args)]
pub struct Issue {
    /// Name of its files, such as node-1
    name: String,
    /// DNS name or IP address under which HTTP clients reach it; may be repeated. Links within the cluster need none
    #[arg(long = "host")]
    hosts: Vec<String>,
    /// How long it lasts
    #[arg(long, default_value_t = DAYS)]
    days: u32,
    #[command(flatten)]
    folder: Folder,
}

/// Make a certificate anew that ends soon.
#[derive(Args)]
pub struct Renew {
    /// Names, as they were made; all of the folder without any
    names: Vec<String>,
    /// Those that end within so many days
    #[arg(long, default_value_t = 30)]
    within_days: u32,
    /// How long the new ones last
    #[arg(long, default_value_t = DAYS)]
    days: u32,
    #[command(flatten)]
    folder: Folder,
}

/// Show the certificates of a folder and when they end.
#[derive(Args)]
pub struct List {
    /// Folder of the certificates
    #[arg(long = "dir", env = "QUORATE_CERTS", default_value = ".quorate/certs")]
    dir: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Cert {
    pub fn json(&self) -> bool {
        match self {
            Cert::Ca(verb) => verb.folder.json,
            Cert::Node(verb) | Cert::Gateway(verb) | Cert::Operator(verb) => verb.folder.json,
            Cert::Renew(verb) => verb.folder.json,
            Cert::List(verb) => verb.json,
        }
    }

    pub fn run(self) -> Result<(), Failure> {
        match self {
            Cert::Ca(verb) => verb.run(),
            Cert::Node(verb) => verb.run(Role::Node),
            Cert::Gateway(verb) => verb.run(Role::Gateway),
            Cert::Operator(verb) => verb.run(Role::Operator),
            Cert::Renew(verb) => verb.run(),
            Cert::List(verb) => verb.run(),
        }
    }
}

// ------------------------------------------------------------------ verbs

impl Ca {
    fn run(self) -> Result<(), Failure> {
        let Folder { dir, json, dry_run } = self.folder;
        let made = make_ca(&dir, &self.cluster, self.days, dry_run)?;
        let what = format!("the authority of cluster {}", self.cluster);
        told(json, dry_run, made, &Pair::of(&dir, CA), &what, json!({"cluster": self.cluster}));
        Ok(())
    }
}

impl Issue {
    fn run(self, role: Role) -> Result<(), Failure> {
        let Folder { dir, json, dry_run } = self.folder;
        let made = issue(&dir, &self.name, role, &self.hosts, self.days, dry_run)?;
        let what = format!("a {}'s certificate", role.word());
        told(json, dry_run, made, &Pair::of(&dir, &self.name), &what, json!({"name": self.name, "role": role.word()}));
        Ok(())
    }
}

impl Renew {
    fn run(self) -> Result<(), Failure> {
        let Folder { dir, json, dry_run } = self.folder;
        let authority = Authority::open(&dir)?;
        let mut names = if self.names.is_empty() { names(&dir)? } else { self.names.clone() };
        if self.names.is_empty() {
            // A bundle of authorities, for instance, is no holder's.
            names.retain(|name| name != CA && Pair::of(&dir, name).key.exists());
        }
        let (mut rows, mut text) = (Vec::new(), String::new());
        for name in &names {
            let renewed = renew(&dir, &authority, name, self.within_days, self.days, dry_run)?;
            let verb = match (renewed, dry_run) {
                (false, _) => "ends later, and stays",
                (true, true) => "would be renewed",
                (true, false) => "is renewed",
            };
            text += &format!("{name} {verb}\n");
            rows.push(json!({"name": name, "changed": renewed && !dry_run, "due": renewed}));
        }
        output::print(json, &json!({"ok": true, "dry_run": dry_run, "certificates": rows}), &text);
        Ok(())
    }
}

impl List {
    fn run(self) -> Result<(), Failure> {
        let (mut rows, mut text) = (Vec::new(), String::new());
        for name in names(&self.dir)? {
            let pair = Pair::of(&self.dir, &name);
            let found = read(&pair.certificate)?;
            let days_left = found.not_after.duration_since(SystemTime::now()).map_or(0, |left| left.as_secs() / DAY.as_secs());
            let role = found.name.as_ref().map_or(if cluster_of(&found).is_some() { "ca" } else { "other" }, |name| name.role.word());
            text += &format!("{name:<20} {role:<10} {days_left:>6} days left\n");
            rows.push(json!({
                "name": name, "role": role, "hosts": found.hosts, "days_left": days_left, "certificate": pair.certificate.display().to_string(),
            }));
        }
        output::print(self.json, &json!({"ok": true, "certificates": rows}), &text);
        Ok(())
    }
}

fn told(as_json: bool, dry_run: bool, made: bool, pair: &Pair, what: &str, about: Value) {
    let (certificate, key) = (pair.certificate.display().to_string(), pair.key.display().to_string());
    let text = match (made, dry_run) {
        (false, _) => format!("{what} is in {certificate} already"),
        (true, true) => format!("would make {what}: {certificate} and {key}"),
        (true, false) => format!("{what} is in {certificate}, its key in {key}"),
    };
    let mut json = json!({"ok": true, "dry_run": dry_run, "changed": made && !dry_run, "certificate": certificate, "key": key});
    if let (Some(json), Value::Object(about)) = (json.as_object_mut(), about) {
        json.extend(about);
    }
    output::print(as_json, &json, &text);
}

// ------------------------------------------------------------------ making

/// The two files of one holder.
struct Pair {
    certificate: PathBuf,
    key: PathBuf,
}

impl Pair {
    fn of(dir: &Path, name: &str) -> Self {
        Self { certificate: dir.join(format!("{name}.pem")), key: dir.join(format!("{name}.key")) }
    }
}

/// True when it was made, or with `dry_run` would be; false when it is there already.
pub fn make_ca(dir: &Path, cluster: &str, days: u32, dry_run: bool) -> Result<bool, Failure> {
    Name::new(Role::Node, cluster).map_err(|error| Failure::usage(error.to_string()))?;
    let pair = Pair::of(dir, CA);
    if pair.certificate.exists() {
        let found = read(&pair.certificate)?;
        return match cluster_of(&found) == Some(cluster) && pair.key.exists() {
            true => Ok(false),
            false => Err(Failure::failed(format!(
                "{} is there and is not the authority of cluster {cluster} with its key; nothing was overwritten",
                pair.certificate.display()
            ))),
        };
    }
    if dry_run {
        return Ok(true);
    }
    let params = ca_params(cluster, days)?;
    let key = key(dir, &pair.key)?;
    let made = params.self_signed(&key).context("cannot sign the authority's certificate")?;
    publish(&pair.certificate, &made.pem())?;
    Ok(true)
}

/// What an authority's certificate says. What it signs has to name it by the same words, so they are made here only.
fn ca_params(cluster: &str, days: u32) -> Result<CertificateParams, Failure> {
    let mut params = params(days)?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let name = authority(cluster).map_err(|error| Failure::usage(error.to_string()))?;
    params.subject_alt_names = alternative_names(vec![name])?;
    params.distinguished_name.push(DnType::OrganizationName, cluster);
    params.distinguished_name.push(DnType::CommonName, format!("Quorate authority of {cluster}"));
    Ok(params)
}

fn alternative_names(hosts: Vec<String>) -> Result<Vec<SanType>, Failure> {
    // A name for any host of a domain begins with a star.
    let is_host = |host: &String| ServerName::try_from(host.strip_prefix("*.").unwrap_or(host)).is_ok();
    if let Some(wrong) = hosts.iter().find(|host| !is_host(host)) {
        return Err(Failure::usage(format!("`{wrong}` is no DNS name or IP address")));
    }
    let params = CertificateParams::new(hosts).map_err(|error| Failure::usage(format!("a host is no DNS name or IP address: {error}")))?;
    Ok(params.subject_alt_names)
}

/// The cluster of an authority that `quorate cert` made.
fn cluster_of(certificate: &Certificate) -> Option<&str> {
    certificate.hosts.iter().find_map(|host| cluster_of_authority(host))
}

/// Makes a certificate of the folder's authority. True when it was made, or with `dry_run` would be.
pub fn issue(dir: &Path, name: &str, role: Role, hosts: &[String], days: u32, dry_run: bool) -> Result<bool, Failure> {
    check_file_name(name)?;
    let authority = Authority::open(dir)?;
    let wanted = authority.name(role)?;
    let pair = Pair::of(dir, name);
    if pair.certificate.exists() {
        let found = read(&pair.certificate)?;
        let has_hosts = hosts.iter().all(|host| found.hosts.contains(host)) && found.hosts.len() == hosts.len() + 1;
        return match found.name.as_ref() == Some(&wanted) && has_hosts && pair.key.exists() {
            true => Ok(false),
            false => Err(Failure::failed(format!(
                "{} is there and is not for {wanted} with these hosts and its key; nothing was overwritten. Choose another name, or move \
                 the old files away",
                pair.certificate.display()
            ))),
        };
    }
    if dry_run {
        return Ok(true);
    }
    let key = key(dir, &pair.key)?;
    authority.sign(&pair.certificate, &key, &wanted, hosts, days)?;
    Ok(true)
}

/// True when it was due.
pub fn renew(dir: &Path, authority: &Authority, name: &str, within_days: u32, days: u32, dry_run: bool) -> Result<bool, Failure> {
    check_file_name(name)?;
    let pair = Pair::of(dir, name);
    let found = read(&pair.certificate)?;
    if found.not_after > SystemTime::now() + DAY * within_days {
        return Ok(false);
    }
    let Some(holder) = found.name else {
        return Err(Failure::failed(format!(
            "{} was not made by `quorate cert`, and is renewed where it is from",
            pair.certificate.display()
        )));
    };
    if dry_run {
        return Ok(true);
    }
    let own = holder.to_string();
    let hosts: Vec<String> = found.hosts.into_iter().filter(|host| *host != own).collect();
    let key = read_key(&pair.key)?;
    authority.sign(&pair.certificate, &key, &holder, &hosts, days)?;
    Ok(true)
}

/// What signs.
pub struct Authority {
    cluster: String,
    issuer: Issuer<'static, KeyPair>,
    not_after: SystemTime,
}

impl Authority {
    pub fn open(dir: &Path) -> Result<Self, Failure> {
        let pair = Pair::of(dir, CA);
        if !pair.certificate.exists() || !pair.key.exists() {
            let (certificate, key) = (pair.certificate.display(), pair.key.display());
            return Err(Failure::usage(format!(
                "the authority's {certificate} and {key} are not both there: `quorate cert ca` makes them"
            )));
        }
        let found = read(&pair.certificate)?;
        let cluster = cluster_of(&found);
        let cluster = cluster.with_context(|| format!("{} is no authority made by `quorate cert ca`", pair.certificate.display()))?;
        let issuer = Issuer::new(ca_params(cluster, CA_DAYS)?, read_key(&pair.key)?);
        Ok(Self { cluster: cluster.into(), issuer, not_after: found.not_after })
    }

    fn name(&self, role: Role) -> Result<Name, Failure> {
        Name::new(role, &self.cluster).map_err(|error| Failure::failed(error.to_string()))
    }

    /// Replaces the certificate in one step: a process may be reading it.
    fn sign(&self, path: &Path, key: &KeyPair, holder: &Name, hosts: &[String], days: u32) -> Result<(), Failure> {
        let mut params = params(days)?;
        if self.not_after < SystemTime::now() + DAY * days {
            let left = self.not_after.duration_since(SystemTime::now()).unwrap_or_default().as_secs() / DAY.as_secs();
            return Err(Failure::failed(format!(
                "the authority ends in {left} days, before the certificate would: ask for fewer --days, or make a new authority in another folder"
            )));
        }
        let names = [holder.to_string()].into_iter().chain(hosts.iter().cloned()).collect::<Vec<_>>();
        params.subject_alt_names = alternative_names(names)?;
        params.distinguished_name.push(DnType::OrganizationName, holder.cluster.as_str());
        params.distinguished_name.push(DnType::CommonName, holder.to_string());
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        // Nodes call and are called, a gateway calls nodes and serves clients; an operator only calls.
        params.extended_key_usages = match holder.role {
            Role::Node | Role::Gateway => vec![Usage::ServerAuth, Usage::ClientAuth],
            Role::Operator => vec![Usage::ClientAuth],
        };
        params.use_authority_key_identifier_extension = true;
        let made = params.signed_by(key, &self.issuer).context("cannot sign the certificate")?;
        publish(path, &made.pem())
    }
}

fn params(days: u32) -> Result<CertificateParams, Failure> {
    if !(1..=CA_DAYS * 3).contains(&days) {
        return Err(Failure::usage(format!("--days is 1 to {}, not {days}", CA_DAYS * 3)));
    }
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.not_before = (SystemTime::now() - CLOCKS_DIFFER).into();
    params.not_after = (SystemTime::now() + DAY * days).into();
    Ok(params)
}

// ------------------------------------------------------------------ files

fn check_file_name(name: &str) -> Result<(), Failure> {
    let fits = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.')) && !name.starts_with('.');
    if fits && !name.is_empty() && name != CA {
        return Ok(());
    }
    Err(Failure::usage(format!("`{name}` can't name a certificate: use letters, digits, `-`, `_` and `.`, and not `{CA}`")))
}

/// Names of all certificates of the folder, in order.
fn names(dir: &Path) -> Result<Vec<String>, Failure> {
    let entries = std::fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))?;
    let paths = entries.filter_map(Result::ok).map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|kind| kind == "pem"));
    let mut names: Vec<String> = paths.filter_map(|path| Some(path.file_stem()?.to_str()?.to_string())).collect();
    names.sort();
    Ok(names)
}

fn read(path: &Path) -> Result<Certificate, Failure> {
    Certificate::read(path).map_err(|error| Failure::failed(error.to_string()))
}

fn read_key(path: &Path) -> Result<KeyPair, Failure> {
    let pem = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    // The reason is left out: it may quote the key.
    KeyPair::from_pem(&pem).map_err(|_| Failure::failed(format!("{} holds no private key in PEM form", path.display())))
}

/// The key that is there, or a new one.
fn key(dir: &Path, path: &Path) -> Result<KeyPair, Failure> {
    if path.exists() {
        return read_key(path);
    }
    std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let key = KeyPair::generate().context("cannot make a key")?;
    let draft = path.with_extension("key.new");
    write(&draft, 0o600, &key.serialize_pem())?;
    // A link, and not a rename, which would replace a key that another run has made meanwhile.
    let linked = std::fs::hard_link(&draft, path);
    let _ = std::fs::remove_file(&draft);
    linked.with_context(|| format!("cannot make {}", path.display()))?;
    sync(dir)?;
    Ok(key)
}

fn publish(path: &Path, pem: &str) -> Result<(), Failure> {
    let draft = path.with_extension("pem.new");
    write(&draft, 0o644, pem)?;
    std::fs::rename(&draft, path).with_context(|| format!("cannot make {}", path.display()))?;
    sync(path.parent().unwrap_or(Path::new(".")))
}

fn write(path: &Path, mode: u32, text: &str) -> Result<(), Failure> {
    let _ = std::fs::remove_file(path);
    let written = OpenOptions::new().write(true).create_new(true).mode(mode).open(path).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()
    });
    Ok(written.with_context(|| format!("cannot write {}", path.display()))?)
}

fn sync(dir: &Path) -> Result<(), Failure> {
    Ok(File::open(dir).and_then(|dir| dir.sync_all()).with_context(|| format!("cannot sync {}", dir.display()))?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn bytes(dir: &Path, file: &str) -> Vec<u8> {
        std::fs::read(dir.join(file)).expect("there")
    }

    #[test]
    fn certificates_are_made_once_and_never_overwritten() {
        let dir = tempfile::tempdir().expect("a folder");
        let (dir, hosts) = (dir.path(), ["127.0.0.1".to_string(), "gate.example".to_string()]);
        assert!(make_ca(dir, "acme", CA_DAYS, true).expect("dry"));
        assert!(!dir.join("ca.pem").exists() && !dir.join("ca.key").exists(), "a dry run writes nothing");
        assert!(issue(dir, "g", Role::Gateway, &hosts, DAYS, false).is_err(), "there is no authority");

        assert!(make_ca(dir, "acme", CA_DAYS, false).expect("made"));
        assert!(issue(dir, "g", Role::Gateway, &hosts, DAYS, false).expect("made"));
        let before = [bytes(dir, "ca.pem"), bytes(dir, "ca.key"), bytes(dir, "g.pem"), bytes(dir, "g.key")];
        assert!(!make_ca(dir, "acme", CA_DAYS, false).expect("there already"));
        assert!(!issue(dir, "g", Role::Gateway, &hosts, DAYS, false).expect("there already"));
        assert!(make_ca(dir, "other", CA_DAYS, false).is_err());
        assert!(issue(dir, "g", Role::Node, &hosts, DAYS, false).is_err());
        assert!(issue(dir, "g", Role::Gateway, &hosts[..1], DAYS, false).is_err());
        assert_eq!(before, [bytes(dir, "ca.pem"), bytes(dir, "ca.key"), bytes(dir, "g.pem"), bytes(dir, "g.key")]);

        let made = Certificate::read(&dir.join("g.pem")).expect("read");
        assert_eq!(made.name, Some(Name::new(Role::Gateway, "acme").expect("fits")));
        assert_eq!(made.hosts, ["gateway.acme.quorate.internal", "127.0.0.1", "gate.example"]);
        for key in ["ca.key", "g.key"] {
            assert_eq!(std::fs::metadata(dir.join(key)).expect("there").permissions().mode() & 0o777, 0o600, "{key}");
        }
    }

    #[test]
    fn a_verb_that_was_interrupted_goes_on_with_the_key_that_it_made() {
        let dir = tempfile::tempdir().expect("a folder");
        make_ca(dir.path(), "acme", CA_DAYS, false).expect("made");
        issue(dir.path(), "n", Role::Node, &[], DAYS, false).expect("made");
        let key = bytes(dir.path(), "n.key");
        std::fs::remove_file(dir.path().join("n.pem")).expect("removed");
        assert!(issue(dir.path(), "n", Role::Node, &[], DAYS, false).expect("made"));
        assert_eq!(bytes(dir.path(), "n.key"), key);
    }

    #[test]
    fn a_certificate_is_renewed_when_it_ends_soon_under_the_same_key_and_names() {
        let dir = tempfile::tempdir().expect("a folder");
        let (dir, hosts) = (dir.path(), ["10.0.0.7".to_string()]);
        make_ca(dir, "acme", CA_DAYS, false).expect("made");
        issue(dir, "n", Role::Node, &hosts, 20, false).expect("made");
        let authority = Authority::open(dir).expect("there");
        let (before, key) = (Certificate::read(&dir.join("n.pem")).expect("read"), bytes(dir, "n.key"));
        assert!(!renew(dir, &authority, "n", 10, DAYS, false).expect("not due"));
        assert!(renew(dir, &authority, "n", 30, DAYS, true).expect("due"));
        assert_eq!(Certificate::read(&dir.join("n.pem")).expect("read"), before, "a dry run changes nothing");
        assert!(renew(dir, &authority, "n", 30, DAYS, false).expect("due"));
        let after = Certificate::read(&dir.join("n.pem")).expect("read");
        assert!(after.not_after > before.not_after + DAY * 300);
        assert_eq!((after.name, after.hosts, bytes(dir, "n.key")), (before.name, before.hosts, key));
        assert!(!renew(dir, &authority, "n", 30, DAYS, false).expect("not due any more"));
    }

    #[test]
    fn a_name_that_leaves_the_folder_and_a_cluster_that_fits_no_certificate_are_refused() {
        let dir = tempfile::tempdir().expect("a folder");
        assert!(make_ca(dir.path(), "Acme Corp", CA_DAYS, false).is_err());
        make_ca(dir.path(), "acme", CA_DAYS, false).expect("made");
        for name in ["../n", "", "ca", ".n", "a/b"] {
            assert_eq!(issue(dir.path(), name, Role::Node, &[], DAYS, false).expect_err(name).code, crate::exit::USAGE, "{name}");
        }
        assert!(issue(dir.path(), "n", Role::Node, &["not a host".into()], DAYS, false).is_err());
        assert!(issue(dir.path(), "n", Role::Node, &[], CA_DAYS + 1, false).is_err(), "it would outlive its authority");
    }
}
