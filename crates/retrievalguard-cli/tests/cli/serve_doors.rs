//! Who gets in, who is told what at the door, and what happens there while the service ends.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::sandbox::Sandbox;
use crate::serve_client::{Service, agent, reply};

fn query_picture(sandbox: &Sandbox) -> Vec<u8> {
    sandbox.bytes("pictures/class-1/3.png")
}

/// Status and JSON of a raw answer.
fn told(answer: &str) -> (u16, Value) {
    let (head, body) = answer.split_once("\r\n\r\n").expect("an answer has a head");
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, serde_json::from_str(body).unwrap_or(Value::Null))
}

/// A connection from another address of this machine.
fn connect_from(source: [u8; 4], address: &str) -> TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((source, 0)).into()).unwrap();
    socket.connect(&address.parse::<SocketAddr>().unwrap().into()).unwrap();
    socket.into()
}

#[test]
fn while_it_ends_probes_and_newcomers_are_told_so_and_running_queries_finish() {
    let sandbox = Sandbox::indexed();
    let mut service = Service::start(
        &sandbox,
        "--max-samples 1000000 --max-job-samples 1000000 --max-seconds 86400 --grace 200",
    );
    let (url, picture) = (service.url.clone(), query_picture(&sandbox));
    let job = service.post("/v1/jobs?samples=1000000", &picture).expect(202);
    let (watched, id) = (url.clone(), job["id"].as_str().unwrap().to_owned());
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| {
            let request = agent().post(format!("{url}/v1/query?samples=100000")).content_type("image/png");
            reply(request.send(&picture))
        });
        let watching =
            scope.spawn(move || reply(agent().get(format!("{watched}/v1/jobs/{id}/events")).call()));
        service.wait_for("the query runs", |service| {
            let text = String::from_utf8(service.get("/metrics").body).unwrap();
            text.lines().any(|line| line == "retrievalguard_requests_inside 1")
        });
        let mut idle = TcpStream::connect(service.address()).unwrap();
        service.ask_to_end();
        service.wait_for("it has heard", |service| service.get("/readyz").status == 503);
        // Connections that are made now, and the one that lay idle.
        let head = |line: &str| format!("{line} HTTP/1.1\r\nhost: {}\r\n\r\n", service.address());
        idle.write_all(head("GET /readyz").as_bytes()).unwrap();
        let mut late = String::new();
        idle.read_to_string(&mut late).unwrap();
        for (answer, status) in [
            (late, 503),
            (service.raw(&head("GET /readyz")), 503),
            (service.raw(&head("GET /healthz")), 200),
            (service.raw(&head("GET /v1/items")), 503),
            (service.raw(&head("GET /")), 503),
            (service.raw(&head("HEAD /readyz")), 503),
            (service.raw(&head("DELETE /v1/items/x")), 503),
        ] {
            assert_eq!(told(&answer).0, status, "{answer}");
            assert!(answer.to_lowercase().contains("connection: close"), "{answer}");
            let code = &told(&answer).1["error"]["code"];
            assert!(status == 200 || *code == "closing" || code.is_null(), "{answer}");
        }
        let refused = service.post("/v1/query?samples=100", &picture);
        assert!(refused.header("retry-after").is_some());
        assert_eq!(refused.expect(503)["error"]["code"], "closing");
        asked.join().unwrap().expect(200);
        // Whoever watches a job hears that the service ends, not nothing.
        let events = crate::serve_client::events(&watching.join().unwrap());
        let (name, last) = events.last().unwrap();
        assert_eq!((name.as_str(), &last["error"]["code"]), ("error", &Value::from("closing")));
    });
    assert_eq!(service.child.wait().unwrap().code(), Some(0));
}

#[test]
fn while_it_ends_newcomers_are_told_so_even_if_every_place_is_taken() {
    let sandbox = Sandbox::indexed();
    let mut service = Service::start(
        &sandbox,
        "--connections 3 --connections-per-client 3 --max-samples 10000000 --max-seconds 86400 --grace 20 --log off",
    );
    let (address, picture) = (service.address().to_owned(), query_picture(&sandbox));
    // A query that outlasts the test, and two connections that say nothing.
    let mut asking = TcpStream::connect(&address).unwrap();
    let head = format!(
        "POST /v1/query?samples=2000000 HTTP/1.1\r\nhost: {address}\r\ncontent-type: image/png\r\ncontent-length: {}\r\n\r\n",
        picture.len()
    );
    asking.write_all(&[head.as_bytes(), &picture].concat()).unwrap();
    service.wait_for("the query runs", |_| {
        let text = reply(agent().get(format!("http://{address}/metrics")).call()).body;
        String::from_utf8(text).unwrap().lines().any(|line| line == "retrievalguard_requests_inside 1")
    });
    let held: Vec<TcpStream> = (0..2).map(|_| TcpStream::connect(&address).unwrap()).collect();
    service.ask_to_end();
    let answer =
        service.raw(&format!("GET /readyz HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n"));
    drop(held);
    let (status, body) = told(&answer);
    assert_eq!((status, &body["error"]["code"]), (503, &Value::from("closing")), "{answer}");
    drop(asking);
    assert_eq!(service.child.wait().unwrap().code(), Some(0));
}

#[test]
fn what_does_not_end_in_time_is_given_up_and_told_so() {
    let sandbox = Sandbox::indexed();
    let service = Service::start(&sandbox, "--max-samples 10000000 --max-seconds 86400 --grace 1 --log off");
    let (url, picture) = (service.url.clone(), query_picture(&sandbox));
    std::thread::scope(|scope| {
        let [whole, streamed] = ["application/json", "text/event-stream"].map(|accept| {
            let (url, picture) = (&url, &picture);
            scope.spawn(move || {
                let request =
                    agent().post(format!("{url}/v1/query?samples=2000000")).header("accept", accept);
                reply(request.content_type("image/png").send(picture))
            })
        });
        service.wait_for("both run", |service| {
            let text = String::from_utf8(service.get("/metrics").body).unwrap();
            text.lines().any(|line| line == "retrievalguard_requests_inside 2")
        });
        let started = Instant::now();
        assert_eq!(service.terminate(), Some(0));
        assert!(started.elapsed() < Duration::from_secs(15), "{:?}", started.elapsed());
        assert_eq!(whole.join().unwrap().expect(503)["error"]["code"], "closing");
        let events = crate::serve_client::events(&streamed.join().unwrap());
        let (name, last) = events.last().unwrap();
        assert_eq!((name.as_str(), &last["error"]["code"]), ("error", &Value::from("closing")), "{events:?}");
    });
}

#[test]
fn one_address_cannot_hold_every_connection() {
    let sandbox = Sandbox::indexed();
    sandbox.write("tokens", "read aaaaaaaaaaaaaaaa\n");
    let line = "--host 0.0.0.0 --tokens tokens --connections 12 --connections-per-client 6";
    let service = Service::start(&sandbox, line);
    let address = service.address().replace("0.0.0.0", "127.0.0.1");
    // Without a word, with half a head, and with half a body: none of them has shown a token.
    let half = format!("POST /v1/query HTTP/1.1\r\nhost: {address}\r\ncontent-length: 9\r\n\r\n");
    let held: Vec<TcpStream> = (0..6)
        .map(|number| {
            let mut stream = connect_from([127, 0, 0, 1], &address);
            let bytes = [&b""[..], b"GET / HTTP/1.1\r\nx:", half.as_bytes()][number % 3];
            stream.write_all(bytes).unwrap();
            stream
        })
        .collect();
    // Connections are accepted in the order in which they came: these six are inside before the next is looked at.
    let mut refused = String::new();
    connect_from([127, 0, 0, 1], &address).read_to_string(&mut refused).unwrap();
    let (status, body) = told(&refused);
    assert_eq!((status, &body["error"]["code"]), (429, &Value::from("too_many_connections")), "{refused}");
    assert!(body["error"]["message"].as_str().unwrap().contains("6 connections"), "{refused}");

    // Another client gets in all the same, and everyone else the same way.
    let mut other = connect_from([127, 0, 0, 2], &address);
    let head = format!("GET /readyz HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    other.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    other.read_to_string(&mut answer).unwrap();
    assert_eq!(told(&answer).0, 200, "{answer}");

    // Whoever says nothing is not listened to for long.
    let started = Instant::now();
    for mut stream in held {
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    }
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
    let mut again = connect_from([127, 0, 0, 1], &address);
    again.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    again.read_to_string(&mut answer).unwrap();
    assert_eq!(told(&answer).0, 200, "{answer}");
}

#[test]
fn a_connection_that_lies_idle_after_its_answer_is_closed() {
    let sandbox = Sandbox::indexed();
    let service = Service::start(&sandbox, "--log off");
    let started = Instant::now();
    let head = format!("GET /healthz HTTP/1.1\r\nhost: {}\r\n\r\n", service.address());
    let answer = service.raw(&head);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let time = started.elapsed();
    assert!((Duration::from_secs(2)..Duration::from_secs(20)).contains(&time), "{time:?}");
}

#[test]
fn pages_of_other_sites_can_neither_show_pictures_nor_probe_names() {
    let sandbox = Sandbox::indexed();
    let service = Service::start(&sandbox, "--allowed-host shop.example --log off");
    let address = service.address().to_owned();
    let item = service.get("/v1/items").expect(200)["items"][0]["identity"].as_str().unwrap().to_owned();
    let item = item.replace('/', "%2F");
    let ask = |line: &str, headers: &str| {
        service.raw(&format!("{line} HTTP/1.1\r\n{headers}connection: close\r\n\r\n"))
    };
    let own = format!("host: {address}\r\n");
    for (line, headers, wanted) in [
        // An <img> of another site, of another port of this machine, and of the page itself.
        (format!("GET /v1/items/{item}/picture"), format!("{own}sec-fetch-site: cross-site\r\n"), 403),
        (format!("GET /v1/items/{item}/picture"), format!("{own}sec-fetch-site: same-site\r\n"), 403),
        (format!("GET /v1/items/{item}/picture"), format!("{own}sec-fetch-site: same-origin\r\n"), 200),
        (format!("GET /v1/items/{item}/picture"), own.clone(), 200),
        ("GET /v1/items/nobody".to_owned(), format!("{own}sec-fetch-site: cross-site\r\n"), 403),
        // A link to the page.
        ("GET /".to_owned(), format!("{own}sec-fetch-site: cross-site\r\n"), 200),
        ("GET /app.js".to_owned(), format!("{own}sec-fetch-site: cross-site\r\n"), 403),
        ("GET /healthz".to_owned(), format!("{own}sec-fetch-site: cross-site\r\n"), 200),
        // Names.
        ("GET /v1/items".to_owned(), "host: shop.example\r\n".to_owned(), 200),
        ("GET /v1/items".to_owned(), "host: rebound.example\r\n".to_owned(), 403),
        ("GET /v1/items".to_owned(), "host: 127.0.0.1:80@rebound.example\r\n".to_owned(), 400),
        ("GET /v1/items".to_owned(), "host: \r\n".to_owned(), 400),
        ("GET /v1/items".to_owned(), String::new(), 400),
        ("GET /v1/items".to_owned(), format!("{own}{own}"), 400),
        (format!("GET http://{address}/v1/items"), own.clone(), 200),
        ("GET http://rebound.example/v1/items".to_owned(), own.clone(), 400),
    ] {
        let answer = ask(&line, &headers);
        assert_eq!(told(&answer).0, wanted, "{line} {headers}: {answer}");
        assert!(answer.contains("cross-origin-resource-policy: same-origin"), "{line}: {answer}");
        if wanted >= 400 {
            assert!(told(&answer).1["error"]["message"].is_string(), "{answer}");
        }
    }
    drop(service);
    let line = "serve --gallery gallery --model model/convolutional.onnx --engine rten --port 0 --log off";
    sandbox.run(&format!("{line} --allowed-host https://shop.example")).fails(2, &["https://shop.example"]);
}

#[test]
fn every_refusal_has_words_and_requests_may_follow_each_other_at_once() {
    let sandbox = Sandbox::indexed();
    let service = Service::start(&sandbox, "--log off");
    let address = service.address().to_owned();
    for line in
        ["OPTIONS /v1/items", "PUT /v1/items/x", "GET /nowhere", "OPTIONS /nowhere", "DELETE /healthz"]
    {
        let answer = service.raw(&format!("{line} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n"));
        let (status, body) = told(&answer);
        assert!([404, 405].contains(&status) && body["error"]["message"].is_string(), "{line}: {answer}");
        assert!(answer.contains("content-type: application/json"), "{line}: {answer}");
    }
    let head =
        service.raw(&format!("HEAD /v1/items HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n"));
    assert!(head.starts_with("HTTP/1.1 200") && head.ends_with("\r\n\r\n"), "{head}");
    let one = format!("GET /healthz HTTP/1.1\r\nhost: {address}\r\n\r\n");
    let last = format!("GET /readyz HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    let answers = service.raw(&format!("{one}{one}{last}"));
    assert_eq!(answers.matches("HTTP/1.1 200").count(), 3, "{answers}");
    assert!(answers.ends_with("{\"status\":\"ready\"}"), "{answers}");
}
