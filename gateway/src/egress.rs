//! What may be called from here: the one rule for targets outside.
//!
//! HTTPS goes anywhere. Plain HTTP goes to this machine, or anywhere for who allows it by name. Nothing else goes out. The rule
//! looks at the text of a target alone: what a name resolves to is for whoever connects.

use url::{Host, Url};

/// What is let through besides HTTPS.
#[derive(Clone, Copy, Debug)]
pub struct Allowed {
    pub loopback_http: bool,
    pub plain_http: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    pub allowed: bool,
    pub scheme: String,
    /// Empty for what has none.
    pub host: String,
    pub reasons: Vec<String>,
}

/// Whether a target may be called; an error is what keeps it from being an absolute URL.
pub fn judge(target: &str, allowed: Allowed) -> Result<Verdict, String> {
    let url = Url::parse(target).map_err(|error| error.to_string())?;
    let (scheme, host) = (url.scheme().to_string(), url.host_str().unwrap_or_default().to_string());
    let is_loopback = match url.host() {
        Some(Host::Domain(name)) => {
            let name = name.trim_end_matches('.');
            name == "localhost" || name.ends_with(".localhost")
        }
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.to_canonical().is_loopback(),
        None => false,
    };
    let (is_allowed, reason) = match scheme.as_str() {
        "https" => (true, "https is allowed"),
        "http" if is_loopback && allowed.loopback_http => (true, "plain http to this machine is allowed"),
        "http" if allowed.plain_http => (true, "plain http was allowed by `allow_plain_http`"),
        "http" if is_loopback => (false, "plain http to this machine was not allowed by `allow_loopback_http`"),
        "http" => (false, "plain http would cross the network in the clear: use https"),
        _ => (false, "only https and http go out"),
    };
    let mut reasons = vec![reason.to_string()];
    if !url.username().is_empty() || url.password().is_some() {
        reasons.push("the target holds credentials: send them in a header, where they are not written down".into());
    }
    Ok(Verdict { allowed: is_allowed, scheme, host, reasons })
}

#[cfg(test)]
mod tests {
    use super::*;

    const STRICT: Allowed = Allowed { loopback_http: false, plain_http: false };
    const USUAL: Allowed = Allowed { loopback_http: true, plain_http: false };
    const LAX: Allowed = Allowed { loopback_http: true, plain_http: true };

    #[test]
    fn https_is_allowed_and_plain_http_where_it_is_loopback_or_allowed_by_name() {
        let is_allowed = |target, allowed| judge(target, allowed).unwrap().allowed;
        for target in ["https://example.org/hook", "HTTPS://10.0.0.1:8443"] {
            assert!([STRICT, USUAL, LAX].iter().all(|allowed| is_allowed(target, *allowed)), "{target}");
        }
        let here = ["http://127.0.0.1:7400/x", "http://127.8.9.1", "http://localhost", "http://[::1]:80/", "http://[::ffff:127.0.0.1]"];
        for target in here.into_iter().chain(["http://2130706433/", "http://app.localhost./"]) {
            assert_eq!([STRICT, USUAL, LAX].map(|allowed| is_allowed(target, allowed)), [false, true, true], "{target}");
        }
        let there =
            ["http://example.org", "http://localhost.example.org", "http://10.0.0.1", "http://127.0.0.1.example.org", "http://0.0.0.0"];
        for target in there {
            assert_eq!([STRICT, USUAL, LAX].map(|allowed| is_allowed(target, allowed)), [false, false, true], "{target}");
        }
    }

    #[test]
    fn what_is_no_url_of_the_web_goes_nowhere() {
        for target in ["", "example.org", "//example.org", "https://", "http://[::1", "https://a b"] {
            assert!(judge(target, LAX).is_err(), "{target}");
        }
        for target in ["file:///etc/passwd", "ftp://example.org", "data:text/plain,x", "javascript:alert(1)", "ws://localhost"] {
            let verdict = judge(target, LAX).unwrap();
            assert!(!verdict.allowed && !verdict.reasons.is_empty(), "{target}: {verdict:?}");
        }
    }

    #[test]
    fn credentials_in_a_target_are_pointed_out() {
        let verdict = judge("https://a:b@example.org", USUAL).unwrap();
        assert!(verdict.allowed && verdict.reasons[1].contains("credentials"), "{verdict:?}");
    }
}
