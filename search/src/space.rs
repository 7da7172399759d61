//! Whose words are whose.

/// The mark that all terms of one owner in one tenant begin with: long enough that no two ever share it.
pub fn space(tenant: &str, owner: &str) -> String {
    let mut hasher = blake3::Hasher::new_derive_key("quorate 2026 search space");
    hasher.update(&(tenant.len() as u64).to_le_bytes());
    hasher.update(tenant.as_bytes());
    hasher.update(owner.as_bytes());
    hasher.finalize().to_hex()[..MARK_CHARS].to_string()
}

/// 96 bits.
pub const MARK_CHARS: usize = 24;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_spelling_of_a_tenant_reaches_anothers_space() {
        assert_eq!(space("acme", "").len(), MARK_CHARS);
        assert_ne!(space("acme", "mara"), space("acmem", "ara"));
        assert_ne!(space("acme", ""), space("", "acme"));
    }
}
