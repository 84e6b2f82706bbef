//! Who may ask: bearer tokens with two roles, and the guard of a service that asks for none.

use std::fmt;
use std::net::IpAddr;

use hyper::{HeaderMap, Method, StatusCode, header};
use sha2::{Digest as _, Sha256};

use crate::problem::Problem;

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
        None => address.to_string(),
    }
}

/// Keeps other web pages in a visitor's browser from using a service that asks for no token.
///
/// A page elsewhere may send requests to a loopback address, by its own name that resolves there or from its own
/// origin. The first shows in `Host`, the second in `Origin` and `Sec-Fetch-Site`.
pub(crate) fn check_origin(method: &Method, headers: &HeaderMap) -> Result<(), Problem> {
    let refused = |message: String| Problem::new(StatusCode::FORBIDDEN, "foreign_origin", message);
    let text = |name| headers.get(name).map(|value: &header::HeaderValue| value.to_str().unwrap_or("?"));
    let host = text(header::HOST).unwrap_or("");
    if !is_loopback_name(host) {
        return Err(refused(format!(
            "the service was addressed as `{}`, wanted localhost or a loopback address",
            shortened(host)
        )));
    }
    if method.is_safe() {
        return Ok(());
    }
    if let Some(origin) = text(header::ORIGIN)
        && origin.strip_prefix("http://") != Some(host)
    {
        let origin = shortened(origin);
        return Err(refused(format!("the request comes from the page `{origin}`, wanted `http://{host}`")));
    }
    match text(header::HeaderName::from_static("sec-fetch-site")) {
        None | Some("same-origin" | "none") => Ok(()),
        Some(site) => {
            Err(refused(format!("the request is `{}` to this service, wanted same-origin", shortened(site))))
        }
    }
}

/// The start of what a stranger sent.
fn shortened(text: &str) -> String {
    text.chars().take(80).collect()
}

fn is_loopback_name(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(""),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
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
    fn pages_of_other_origins_are_turned_away() {
        let site = header::HeaderName::from_static("sec-fetch-site");
        let table = [
            (Method::GET, headers(&[(header::HOST, "localhost:8080")]), true),
            (Method::GET, headers(&[(header::HOST, "[::1]:8080")]), true),
            (Method::GET, headers(&[(header::HOST, "127.0.0.1")]), true),
            (Method::GET, headers(&[(header::HOST, "rebound.example:8080")]), false),
            (Method::GET, headers(&[(header::HOST, "127.0.0.1.example")]), false),
            (Method::GET, HeaderMap::new(), false),
            (Method::POST, headers(&[(header::HOST, "localhost:8080")]), true),
            (
                Method::POST,
                headers(&[(header::HOST, "localhost:8080"), (header::ORIGIN, "http://localhost:8080")]),
                true,
            ),
            (
                Method::POST,
                headers(&[(header::HOST, "localhost:8080"), (header::ORIGIN, "http://other.example")]),
                false,
            ),
            (Method::DELETE, headers(&[(header::HOST, "localhost"), (header::ORIGIN, "null")]), false),
            (Method::POST, headers(&[(header::HOST, "localhost"), (site.clone(), "cross-site")]), false),
            (Method::POST, headers(&[(header::HOST, "localhost"), (site, "same-origin")]), true),
        ];
        for (method, headers, allowed) in table {
            assert_eq!(check_origin(&method, &headers).is_ok(), allowed, "{method} {headers:?}");
        }
    }
}
