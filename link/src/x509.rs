//! The two things that are read off a certificate here: the hosts it stands for, and when it ends (RFC 5280, 4.1 and 4.2.1.6).
//!
//! Whether it is to be believed is not decided here; that is the TLS library's work, when somebody shows it.

use std::net::IpAddr;

use yasna::tags::{TAG_GENERALIZEDTIME, TAG_UTCTIME};
use yasna::{ASN1Result, BERReader, BERReaderSeq, Tag, parse_der};

const SUBJECT_ALTERNATIVE_NAMES: &[u64] = &[2, 5, 29, 17];
/// The kinds of names within them.
const DNS_NAME: u64 = 2;
const IP_ADDRESS: u64 = 7;

pub struct Facts {
    /// DNS names and IP addresses.
    pub hosts: Vec<String>,
    pub not_after_unix_s: i64,
}

pub fn read(certificate: &[u8]) -> ASN1Result<Facts> {
    parse_der(certificate, |reader| {
        reader.read_sequence(|reader| {
            let facts = reader.next().read_sequence(facts)?;
            skip(reader, 2)?; // the signature and its kind
            Ok(facts)
        })
    })
}

fn facts(reader: &mut BERReaderSeq<'_, '_>) -> ASN1Result<Facts> {
    reader.read_optional(|reader| reader.read_tagged(Tag::context(0), |reader| reader.read_der()))?; // version
    skip(reader, 3)?; // serial number, kind of signature, issuer
    let not_after_unix_s = reader.next().read_sequence(|reader| {
        skip(reader, 1)?; // not before
        time(reader.next())
    })?;
    skip(reader, 2)?; // subject, key
    for unique_id in [1, 2] {
        reader.read_optional(|reader| reader.read_tagged_implicit(Tag::context(unique_id), |reader| reader.read_bitvec_bytes()))?;
    }
    let hosts = reader.read_optional(|reader| reader.read_tagged(Tag::context(3), extensions))?;
    Ok(Facts { hosts: hosts.unwrap_or_default(), not_after_unix_s })
}

fn skip(reader: &mut BERReaderSeq<'_, '_>, values: usize) -> ASN1Result<()> {
    for _ in 0..values {
        reader.next().read_der()?;
    }
    Ok(())
}

fn time(reader: BERReader<'_, '_>) -> ASN1Result<i64> {
    match reader.lookahead_tag()? {
        tag if tag == TAG_UTCTIME => Ok(reader.read_utctime()?.datetime().unix_timestamp()),
        tag if tag == TAG_GENERALIZEDTIME => Ok(reader.read_generalized_time()?.datetime().unix_timestamp()),
        _ => Err(yasna::ASN1Error::new(yasna::ASN1ErrorKind::Invalid)),
    }
}

fn extensions(reader: BERReader<'_, '_>) -> ASN1Result<Vec<String>> {
    let mut hosts = Vec::new();
    reader.read_sequence_of(|reader| {
        reader.read_sequence(|reader| {
            let kind = reader.next().read_oid()?;
            reader.read_optional(|reader| reader.read_bool())?; // critical
            let value = reader.next().read_bytes()?;
            if **kind.components() == *SUBJECT_ALTERNATIVE_NAMES {
                let names = parse_der(&value, |reader| reader.collect_sequence_of(|reader| reader.read_tagged_der()))?;
                hosts.extend(names.iter().filter_map(|name| host(name.tag().tag_number, name.value())));
            }
            Ok(())
        })
    })?;
    Ok(hosts)
}

fn host(kind: u64, value: &[u8]) -> Option<String> {
    match kind {
        DNS_NAME => String::from_utf8(value.to_vec()).ok(),
        IP_ADDRESS => {
            let v4 = <[u8; 4]>::try_from(value).map(IpAddr::from);
            v4.or_else(|_| <[u8; 16]>::try_from(value).map(IpAddr::from)).ok().map(|ip| ip.to_string())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime, UNIX_EPOCH};

    use super::*;

    #[test]
    fn hosts_and_the_end_are_read_as_they_were_written_also_after_2050() {
        let hosts = ["node.acme.quorate.internal", "10.0.0.7", "::1"].map(String::from).to_vec();
        for days in [1, 365 * 40] {
            let end = SystemTime::now() + Duration::from_secs(days * 24 * 60 * 60);
            let mut params = rcgen::CertificateParams::new(hosts.clone()).expect("names");
            params.not_after = end.into();
            let made = params.self_signed(&rcgen::KeyPair::generate().expect("a key")).expect("signed");
            let facts = read(made.der()).expect("read");
            assert_eq!(facts.hosts, hosts);
            assert_eq!(facts.not_after_unix_s, end.duration_since(UNIX_EPOCH).expect("later").as_secs() as i64);
        }
    }

    #[test]
    fn no_bytes_however_wrong_make_it_panic() {
        let made = rcgen::CertificateParams::new(vec!["a.example".to_string()]).expect("names");
        let made = made.self_signed(&rcgen::KeyPair::generate().expect("a key")).expect("signed");
        let der = made.der().to_vec();
        for cut in 0..der.len() {
            assert!(read(&der[..cut]).is_err());
            let mut wrong = der.clone();
            wrong[cut] ^= 0x5a;
            // Fine or refused; only a panic would be wrong.
            let _ = read(&wrong);
        }
    }
}
