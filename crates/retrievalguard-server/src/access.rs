//! Who may ask: bearer tokens with two roles, and as whom a client is counted.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use hyper::{HeaderMap, header};
use sha2::{Digest as _, Sha256};

/// Fewest characters of a token: a shorter one could be guessed.
const SHORTEST: usize = 16;

/// What a request may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Ask and look.
    Read,
    /// Change the gallery, too.
    Write,
}

/// Why a line of a token file cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// A line has another form.
    #[error("line {line} of the tokens is not `read TOKEN` or `write TOKEN`")]
    Line {
        /// Which line, counted from 1.
        line: usize,
    },
    /// A token could be guessed.
    #[error("the token in line {line} has {found} characters, wanted at least {SHORTEST}")]
    Short {
        /// Which line, counted from 1.
        line: usize,
        /// Its length.
        found: usize,
    },
    /// A token that cannot stand in a header.
    #[error("the token in line {line} has other characters than letters, digits and -._~+/=")]
    Characters {
        /// Which line, counted from 1.
        line: usize,
    },
}

/// The tokens of a service; only their digests are kept.
#[derive(Clone, Default)]
pub struct Tokens {
    known: Vec<([u8; 32], Role)>,
}

impl fmt::Debug for Tokens {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Tokens({})", self.known.len())
    }
}

impl Tokens {
    /// Reads lines `read TOKEN` and `write TOKEN`; empty lines and those that begin with `#` do not count.
    pub fn parse(text: &str) -> Result<Self, TokenError> {
        let mut known = Vec::new();
        for (place, line) in text.lines().enumerate() {
            let (line, number) = (line.trim(), place + 1);
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let mut words = line.split_whitespace();
            let role = match words.next() {
                Some("read") => Role::Read,
                Some("write") => Role::Write,
                _ => return Err(TokenError::Line { line: number }),
            };
            let (Some(token), None) = (words.next(), words.next()) else {
                return Err(TokenError::Line { line: number });
            };
            if token.len() < SHORTEST {
                return Err(TokenError::Short { line: number, found: token.len() });
            }
            if !token.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte)) {
                return Err(TokenError::Characters { line: number });
            }
            known.push((digest(token), role));
        }
        Ok(Self { known })
    }

    /// Whether nobody is asked for a token.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// The role of a request, `None` for a missing or unknown token; without tokens everyone may do everything.
    pub(crate) fn role(&self, headers: &HeaderMap) -> Option<Role> {
        if self.is_empty() {
            return Some(Role::Write);
        }
        let presented = digest(bearer(headers)?);
        // Digests are compared, so the time it takes says nothing about a token.
        self.known.iter().filter(|(known, _)| *known == presented).map(|&(_, role)| role).max()
    }
}

fn digest(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// What a client is counted by: its token, or its address.
pub(crate) fn client_key(tokens: &Tokens, headers: &HeaderMap, address: IpAddr) -> String {
    match bearer(headers).filter(|_| !tokens.is_empty()) {
        Some(token) => digest(token)[..8].iter().map(|byte| format!("{byte:02x}")).collect(),
        None => client_address(address).to_string(),
    }
}

/// The address as which a client counts: whoever has one address of IPv6 has the 2⁶⁴ around it, too.
pub(crate) fn client_address(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into(),
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(header::HeaderName, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.clone(), value.parse().unwrap())).collect()
    }

    #[test]
    fn a_token_opens_its_role_and_no_other() {
        let tokens = Tokens::parse("# two\nread aaaaaaaaaaaaaaaa\n\nwrite bbbbbbbbbbbbbbbb\n").unwrap();
        for (value, role) in [
            ("Bearer aaaaaaaaaaaaaaaa", Some(Role::Read)),
            ("bearer bbbbbbbbbbbbbbbb", Some(Role::Write)),
            ("Bearer aaaaaaaaaaaaaaab", None),
            ("Basic aaaaaaaaaaaaaaaa", None),
            ("aaaaaaaaaaaaaaaa", None),
            ("Bearer ", None),
        ] {
            assert_eq!(tokens.role(&headers(&[(header::AUTHORIZATION, value)])), role, "{value}");
        }
        assert_eq!(tokens.role(&HeaderMap::new()), None);
        assert_eq!(Tokens::default().role(&HeaderMap::new()), Some(Role::Write));
    }

    #[test]
    fn lines_that_are_no_tokens_are_named() {
        for (text, error) in [
            ("\nadmin aaaaaaaaaaaaaaaa", TokenError::Line { line: 2 }),
            ("read", TokenError::Line { line: 1 }),
            ("read aaaaaaaaaaaaaaaa bbb", TokenError::Line { line: 1 }),
            ("write short", TokenError::Short { line: 1, found: 5 }),
            ("read aaaaaaaaaaaaaaaä", TokenError::Characters { line: 1 }),
        ] {
            assert_eq!(Tokens::parse(text).unwrap_err(), error, "{text}");
        }
    }

    #[test]
    fn a_client_is_its_address_or_all_of_its_ipv6_network() {
        let same = |one: &str, other: &str| {
            client_address(one.parse().unwrap()) == client_address(other.parse().unwrap())
        };
        assert!(same("2001:db8::1", "2001:db8::ffff:1") && !same("2001:db8:0:1::1", "2001:db8:0:2::1"));
        assert!(same("::ffff:192.0.2.1", "192.0.2.1") && !same("192.0.2.1", "192.0.2.2"));
    }
}
