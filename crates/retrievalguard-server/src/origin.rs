//! Where a request comes from: names under which the service is addressed, and pages it may be used by.

use std::net::{IpAddr, Ipv6Addr};

use hyper::{HeaderMap, Method, Request, StatusCode, Uri, Version, header};

use crate::access::Tokens;
use crate::problem::Problem;

/// Where the page of another site may lead a visitor: to the page itself, which then asks for the rest.
const FOR_EVERY_SITE: [&str; 3] = ["/", "/healthz", "/readyz"];

/// Refuses requests that were not meant for this service, or come from pages of others.
///
/// A page elsewhere may send requests to this service by its own name that resolves here, and from its own origin. The
/// first shows in `Host`, the second in `Sec-Fetch-Site` and `Origin`. Without tokens only loopback names and those in
/// `hosts` are answered; with tokens every name is, unless `hosts` has some.
pub(crate) fn check_sender<B>(
    request: &Request<B>,
    tokens: &Tokens,
    hosts: &[String],
) -> Result<(), Problem> {
    let host = check_host(request, tokens, hosts)?;
    check_site(request.method(), request.uri().path(), request.headers())?;
    // Behind a proxy that names the service otherwise, a page's own origin may differ; a token is proof enough.
    if tokens.is_empty() { check_origin(request.method(), request.headers(), host) } else { Ok(()) }
}

fn refused(message: String) -> Problem {
    Problem::new(StatusCode::FORBIDDEN, "foreign_origin", message)
}

/// The name under which the service was addressed, with its port, if it may be addressed so.
fn check_host<'r, B>(request: &'r Request<B>, tokens: &Tokens, hosts: &[String]) -> Result<&'r str, Problem> {
    let wrong = |message: String| Problem::new(StatusCode::BAD_REQUEST, "bad_host", message);
    let mut given = request.headers().get_all(header::HOST).iter();
    let (first, second) = (given.next(), given.next());
    if second.is_some() {
        return Err(wrong("the request has several headers `Host`, wanted one".to_owned()));
    }
    let Some(first) = first else {
        // Probes of old proxies have none.
        if request.version() == Version::HTTP_10 && !tokens.is_empty() && hosts.is_empty() {
            return Ok("");
        }
        return Err(wrong("the request has no header `Host`, wanted one".to_owned()));
    };
    let text = first.to_str().unwrap_or("?");
    let name = host_name(text).ok_or_else(|| {
        wrong(format!("the header `Host` is `{}`, wanted NAME or NAME:PORT", shortened(text)))
    })?;
    if let Some(target) = other_target(request.uri(), text) {
        let (target, text) = (shortened(target), shortened(text));
        return Err(wrong(format!(
            "the request is for `{target}` and its header `Host` is `{text}`, wanted the same"
        )));
    }
    let listed = hosts.iter().any(|host| host.eq_ignore_ascii_case(name));
    let open = !tokens.is_empty() && hosts.is_empty();
    if listed || open || is_loopback_name(name) {
        return Ok(text);
    }
    let wanted = if hosts.is_empty() { "" } else { ", or one of its --allowed-host" };
    Err(refused(format!(
        "the service was addressed as `{}`, wanted localhost or a loopback address{wanted}",
        shortened(text)
    )))
}

/// The authority of an absolute target, if it is not the host.
fn other_target<'r>(target: &'r Uri, host: &str) -> Option<&'r str> {
    target.authority().map(|authority| authority.as_str()).filter(|name| !name.eq_ignore_ascii_case(host))
}

/// The name in `NAME` or `NAME:PORT`; `None` for anything else, such as `NAME@NAME`.
fn host_name(text: &str) -> Option<&str> {
    let (name, rest) = match text.strip_prefix('[') {
        Some(inner) => {
            let (address, rest) = inner.split_once(']')?;
            address.parse::<Ipv6Addr>().ok()?;
            (address, rest)
        }
        None => {
            let (name, rest) = text.split_at(text.find(':').unwrap_or(text.len()));
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
            (!name.is_empty() && name.bytes().all(plain)).then_some(())?;
            (name, rest)
        }
    };
    let port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok();
    (rest.is_empty() || rest.strip_prefix(':').is_some_and(port)).then_some(name)
}

/// Whether a text can be allowed as the name of a host.
pub(crate) fn is_host_name(text: &str) -> bool {
    host_name(text) == Some(text) || text.parse::<Ipv6Addr>().is_ok()
}

fn is_loopback_name(name: &str) -> bool {
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Refuses what a page of another site, or of another port of this machine, asks for: also pictures, whose sizes tell
/// which items there are.
fn check_site(method: &Method, path: &str, headers: &HeaderMap) -> Result<(), Problem> {
    let mut sites = headers.get_all("sec-fetch-site").iter().map(|site| site.to_str().unwrap_or("?"));
    let foreign = sites.find(|site| !["same-origin", "none"].contains(site));
    match foreign {
        Some(site) if !(method.is_safe() && FOR_EVERY_SITE.contains(&path)) => {
            Err(refused(format!("the request is `{}` to this service, wanted same-origin", shortened(site))))
        }
        Some(_) | None => Ok(()),
    }
}

/// Refuses changes that a page of another origin asks for, in browsers that do not say the site.
fn check_origin(method: &Method, headers: &HeaderMap, host: &str) -> Result<(), Problem> {
    if method.is_safe() {
        return Ok(());
    }
    let own = |origin: &str| {
        let name = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        name.is_some_and(|name| name.eq_ignore_ascii_case(host))
    };
    let mut origins = headers.get_all(header::ORIGIN).iter().map(|origin| origin.to_str().unwrap_or("?"));
    match origins.find(|origin| !own(origin)) {
        None => Ok(()),
        Some(origin) => {
            let (origin, host) = (shortened(origin), shortened(host));
            Err(refused(format!("the request comes from the page `{origin}`, wanted `http://{host}`")))
        }
    }
}

/// The start of what a stranger sent.
fn shortened(text: &str) -> String {
    text.chars().take(80).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GUARDED: &str = "read aaaaaaaaaaaaaaaa";

    /// The code of the refusal, or nothing.
    fn refusal(tokens: &str, hosts: &[&str], line: &str, pairs: &[(&str, &str)]) -> Option<&'static str> {
        let (method, target) = line.split_once(' ').unwrap();
        let mut request = Request::builder().method(method).uri(target);
        for (name, value) in pairs {
            request = request.header(*name, *value);
        }
        let hosts: Vec<String> = hosts.iter().map(|&host| host.to_owned()).collect();
        let tokens = Tokens::parse(tokens).unwrap();
        check_sender(&request.body(()).unwrap(), &tokens, &hosts).err().map(|problem| problem.code)
    }

    #[test]
    fn a_service_without_tokens_answers_to_loopback_names_only() {
        for (host, wanted) in [
            ("localhost:8080", None),
            ("LOCALHOST", None),
            ("[::1]:8080", None),
            ("127.0.0.1", None),
            ("127.8.9.1:65535", None),
            ("rebound.example:8080", Some("foreign_origin")),
            ("127.0.0.1.example", Some("foreign_origin")),
            ("10.0.0.1", Some("foreign_origin")),
            ("localhost.example", Some("foreign_origin")),
            ("[::2]", Some("foreign_origin")),
            // What is no name at all.
            ("127.0.0.1:80@rebound.example", Some("bad_host")),
            ("localhost:x@rebound.example", Some("bad_host")),
            ("rebound.example@127.0.0.1", Some("bad_host")),
            ("[::1]@rebound.example", Some("bad_host")),
            ("[::1]rebound.example", Some("bad_host")),
            ("[localhost]", Some("bad_host")),
            ("localhost:", Some("bad_host")),
            ("localhost:99999", Some("bad_host")),
            ("localhost:+80", Some("bad_host")),
            ("localhost:80:80", Some("bad_host")),
            ("localhost/", Some("bad_host")),
            ("localhost, rebound.example", Some("bad_host")),
            (":80", Some("bad_host")),
            ("", Some("bad_host")),
        ] {
            assert_eq!(refusal("", &[], "GET /v1/items", &[("host", host)]), wanted, "`{host}`");
        }
        assert_eq!(refusal("", &[], "GET /", &[]), Some("bad_host"));
        let twice = [("host", "localhost"), ("host", "localhost")];
        assert_eq!(refusal("", &[], "GET /", &twice), Some("bad_host"));
        for (target, wanted) in [
            ("http://localhost:1/v1/items", None),
            ("http://LOCALHOST:1/v1/items", None),
            ("http://localhost:2/v1/items", Some("bad_host")),
            ("http://rebound.example/v1/items", Some("bad_host")),
            ("http://me@localhost:1/v1/items", Some("bad_host")),
        ] {
            let found = refusal("", &[], &format!("GET {target}"), &[("host", "localhost:1")]);
            assert_eq!(found, wanted, "{target}");
        }
    }

    #[test]
    fn names_can_be_allowed_and_tokens_open_every_name_unless_some_are_allowed() {
        let shop = [("host", "Shop.example:443")];
        assert_eq!(refusal("", &["shop.example"], "GET /v1/items", &shop), None);
        assert_eq!(refusal("", &["other.example"], "GET /v1/items", &shop), Some("foreign_origin"));
        assert_eq!(refusal(GUARDED, &[], "GET /v1/items", &shop), None);
        assert_eq!(refusal(GUARDED, &["other.example"], "GET /v1/items", &shop), Some("foreign_origin"));
        assert_eq!(refusal(GUARDED, &["other.example"], "GET /v1/items", &[("host", "127.0.0.1")]), None);
        assert_eq!(refusal(GUARDED, &[], "GET /v1/items", &[("host", "a@b")]), Some("bad_host"));
    }

    #[test]
    fn pages_of_other_sites_get_nothing_but_the_way_to_the_page() {
        for tokens in ["", GUARDED] {
            for site in ["cross-site", "same-site", "unheard-of"] {
                let pairs = [("host", "localhost:8080"), ("sec-fetch-site", site)];
                for line in [
                    "GET /v1/items/cat/picture",
                    "HEAD /v1/items/cat",
                    "GET /v1/about",
                    "GET /app.js",
                    "GET /metrics",
                    "POST /v1/query",
                    "DELETE /v1/items/cat",
                    "POST /",
                ] {
                    assert_eq!(refusal(tokens, &[], line, &pairs), Some("foreign_origin"), "{site} {line}");
                }
                for line in ["GET /", "GET /readyz", "HEAD /healthz"] {
                    assert_eq!(refusal(tokens, &[], line, &pairs), None, "{site} {line}");
                }
            }
            for site in ["same-origin", "none"] {
                let pairs = [("host", "localhost:8080"), ("sec-fetch-site", site)];
                assert_eq!(refusal(tokens, &[], "GET /v1/items/cat/picture", &pairs), None, "{site}");
            }
            let both =
                [("host", "localhost"), ("sec-fetch-site", "same-origin"), ("sec-fetch-site", "cross-site")];
            assert_eq!(refusal(tokens, &[], "GET /v1/labels", &both), Some("foreign_origin"));
        }
    }

    #[test]
    fn changes_come_from_the_own_origin() {
        for (origin, wanted) in [
            ("http://localhost:8080", None),
            ("https://localhost:8080", None),
            ("http://localhost:9090", Some("foreign_origin")),
            ("http://other.example", Some("foreign_origin")),
            ("null", Some("foreign_origin")),
        ] {
            let pairs = [("host", "localhost:8080"), ("origin", origin)];
            assert_eq!(refusal("", &[], "POST /v1/items", &pairs), wanted, "{origin}");
            assert_eq!(refusal("", &[], "GET /v1/items", &pairs), None, "{origin}");
            // Whoever shows a token is no page that was never given it.
            assert_eq!(refusal(GUARDED, &[], "POST /v1/items", &pairs), None, "{origin}");
        }
        assert_eq!(refusal("", &[], "POST /v1/items", &[("host", "localhost:8080")]), None);
    }
}
