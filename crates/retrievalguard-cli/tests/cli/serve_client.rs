//! A service under test, and requests to it.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use ureq::http::Response;
use ureq::{Agent, Body};

use crate::sandbox::Sandbox;

/// A service that ends with its test.
pub(crate) struct Service {
    pub(crate) child: Child,
    pub(crate) url: String,
    pub(crate) agent: Agent,
}

/// What came back.
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: ureq::http::HeaderMap,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    pub(crate) fn json(&self) -> Value {
        let text = String::from_utf8_lossy(&self.body);
        serde_json::from_str(&text)
            .unwrap_or_else(|_| Value::String(format!("status {}: {text}", self.status)))
    }

    /// The JSON of an answer that must have this status.
    pub(crate) fn expect(self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", String::from_utf8_lossy(&self.body));
        if self.body.is_empty() { Value::Null } else { self.json() }
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }
}

/// A client that takes every status as an answer.
pub(crate) fn agent() -> Agent {
    let config =
        Agent::config_builder().http_status_as_error(false).timeout_global(Some(Duration::from_secs(120)));
    config.build().into()
}

impl Service {
    /// Starts a service and waits until it says where it is; its log goes to `log.jsonl` in the sandbox.
    pub(crate) fn start(sandbox: &Sandbox, flags: &str) -> Self {
        Self::start_line(
            sandbox,
            &format!(
                "serve --gallery gallery --model model/convolutional.onnx --engine rten --port 0 {flags}"
            ),
        )
    }

    pub(crate) fn start_line(sandbox: &Sandbox, line: &str) -> Self {
        Self::start_by(sandbox, Command::new(env!("CARGO_BIN_EXE_retrievalguard")), line)
    }

    /// Starts a service by another program that turns into it.
    pub(crate) fn start_by(sandbox: &Sandbox, mut command: Command, line: &str) -> Self {
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(sandbox.path("log.jsonl"))
            .expect("a log can be written in the sandbox");
        let mut child = command
            .args(line.split_whitespace())
            .current_dir(sandbox.path("."))
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .expect("the program starts");
        let mut first = String::new();
        let out = child.stdout.take().expect("standard output is a pipe");
        BufReader::new(out).read_line(&mut first).expect("standard output can be read");
        let url = first.trim().to_owned();
        assert!(url.starts_with("http://"), "`{url}`, log: {}", sandbox.text("log.jsonl"));
        Self { child, url, agent: agent() }
    }

    pub(crate) fn get(&self, path: &str) -> Reply {
        reply(self.agent.get(format!("{}{path}", self.url)).call())
    }

    pub(crate) fn delete(&self, path: &str) -> Reply {
        reply(self.agent.delete(format!("{}{path}", self.url)).call())
    }

    pub(crate) fn post(&self, path: &str, body: &[u8]) -> Reply {
        self.post_as(path, "application/octet-stream", body)
    }

    pub(crate) fn post_as(&self, path: &str, kind: &str, body: &[u8]) -> Reply {
        reply(self.agent.post(format!("{}{path}", self.url)).header("content-type", kind).send(body))
    }

    /// Posts and reads the events of the answer.
    pub(crate) fn stream(&self, path: &str, body: &[u8]) -> Vec<(String, Value)> {
        let request = self.agent.post(format!("{}{path}", self.url)).header("accept", "text/event-stream");
        events(&reply(request.content_type("image/png").send(body)))
    }

    /// Waits until a condition holds.
    pub(crate) fn wait_for(&self, what: &str, mut holds: impl FnMut(&Self) -> bool) {
        let started = Instant::now();
        while !holds(self) {
            assert!(started.elapsed() < Duration::from_secs(60), "{what} did not come to be");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Kills it at once, as `kill -9` does.
    pub(crate) fn kill(mut self) {
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("it ends");
    }

    /// Asks it to end in an orderly way.
    #[cfg(unix)]
    pub(crate) fn ask_to_end(&self) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args(["-TERM", &pid]).status().expect("kill can be run");
        assert!(sent.success());
    }

    /// Ends it in an orderly way and returns its exit status.
    #[cfg(unix)]
    pub(crate) fn terminate(mut self) -> Option<i32> {
        self.ask_to_end();
        self.child.wait().expect("it ends").code()
    }

    /// Host and port.
    pub(crate) fn address(&self) -> &str {
        self.url.strip_prefix("http://").expect("an address begins so")
    }

    /// Sends bytes on a connection of their own and returns everything that comes back until it is closed.
    pub(crate) fn raw(&self, request: &str) -> String {
        let mut stream = std::net::TcpStream::connect(self.address()).expect("somebody listens");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a time limit can be set");
        std::io::Write::write_all(&mut stream, request.as_bytes()).expect("it can be sent");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("the connection is closed in order");
        String::from_utf8_lossy(&answer).into_owned()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn reply(result: Result<Response<Body>, ureq::Error>) -> Reply {
    let mut response = result.expect("the service answers");
    let mut body = Vec::new();
    response.body_mut().as_reader().read_to_end(&mut body).expect("the answer can be read");
    Reply { status: response.status().as_u16(), headers: response.headers().clone(), body }
}

/// Names and contents of server-sent events.
pub(crate) fn events(reply: &Reply) -> Vec<(String, Value)> {
    assert_eq!(reply.status, 200, "{}", String::from_utf8_lossy(&reply.body));
    let text = String::from_utf8(reply.body.clone()).expect("events are text");
    text.split("\n\n")
        .filter_map(|event| {
            let name = event.lines().find_map(|line| line.strip_prefix("event: "))?;
            let content = event.lines().find_map(|line| line.strip_prefix("data: "))?;
            Some((name.to_owned(), serde_json::from_str(content).expect("events carry JSON")))
        })
        .collect()
}

/// A form with text parts and pictures.
pub(crate) fn form(fields: &[(&str, &str)], pictures: &[&[u8]]) -> (String, Vec<u8>) {
    let boundary = "a-line-that-is-in-no-picture";
    let mut body = Vec::new();
    for (name, value) in fields {
        let part =
            format!("--{boundary}\r\ncontent-disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n");
        body.extend_from_slice(part.as_bytes());
    }
    for picture in pictures {
        let head = format!(
            "--{boundary}\r\ncontent-disposition: form-data; name=\"picture\"; filename=\"p.png\"\r\n\
             content-type: image/png\r\n\r\n"
        );
        body.extend_from_slice(head.as_bytes());
        body.extend_from_slice(picture);
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(format!("--{boundary}--\r\n").as_bytes());
    (format!("multipart/form-data; boundary={boundary}"), body)
}
