//! Work on a thread of its own, its answer or its events, and what happens when nobody waits any more.

use std::convert::Infallible;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderMap, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde::Serialize;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, timeout_at};
use tracing::Span;

use crate::problem::Problem;
use crate::scheduler::Ticket;

/// Cancels the work when it is dropped, for instance with the connection of a client that left.
pub(crate) struct CancelOnDrop(pub(crate) Arc<Ticket>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Whether the client wants events instead of one answer.
pub(crate) fn wants_events(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    accepted
        .flat_map(|value| value.split(','))
        .any(|kind| kind.split(';').next().unwrap_or("").trim().eq_ignore_ascii_case("text/event-stream"))
}

/// Runs `work` on a thread of its own until it is done, its time is over, or nobody waits.
pub(crate) async fn run<T: Send + 'static>(
    ticket: &Arc<Ticket>,
    limit: Duration,
    work: impl FnOnce(&Ticket) -> Result<T, Problem> + Send + 'static,
) -> Result<T, Problem> {
    let _cancel = CancelOnDrop(Arc::clone(ticket));
    let own = Arc::clone(ticket);
    let span = Span::current();
    let working = tokio::task::spawn_blocking(move || span.in_scope(|| work(&own)));
    ended(tokio::time::timeout(limit, working).await, limit)
}

fn ended<T>(
    result: Result<Result<Result<T, Problem>, tokio::task::JoinError>, tokio::time::error::Elapsed>,
    limit: Duration,
) -> Result<T, Problem> {
    match result {
        Ok(Ok(answer)) => answer,
        Ok(Err(panic)) => Err(Problem::internal(panic)),
        Err(_) => Err(too_long(limit)),
    }
}

fn too_long(limit: Duration) -> Problem {
    let seconds = limit.as_secs();
    Problem::busy(format!("no answer within {seconds} s; ask for fewer samples, or as a job"), seconds)
}

/// Sends events from the thread that works.
#[derive(Clone)]
pub(crate) struct EventSender(UnboundedSender<Event>);

impl EventSender {
    /// Sends one event; nobody may be listening any more.
    pub(crate) fn send(&self, name: &str, content: &impl Serialize) {
        let event = Event::default().event(name).json_data(content);
        let event = event.unwrap_or_else(|_| Event::default().event("error"));
        let _ = self.0.send(event);
    }
}

/// Runs `work` on a thread of its own and streams the events it sends; the last one is `done` or `error`.
pub(crate) fn events<T: Serialize + Send + 'static>(
    ticket: Arc<Ticket>,
    limit: Duration,
    request_id: String,
    work: impl FnOnce(&Ticket, &EventSender) -> Result<T, Problem> + Send + 'static,
) -> Response {
    let (sender, receiver) = unbounded_channel();
    let events = EventSender(sender);
    let own = Arc::clone(&ticket);
    let last = events.clone();
    let id = request_id.clone();
    let span = Span::current();
    tokio::task::spawn_blocking(move || {
        span.in_scope(|| {
            let result = catch_unwind(AssertUnwindSafe(|| work(&own, &events)));
            match result.unwrap_or_else(|_| Err(Problem::internal("a streamed answer panicked"))) {
                Ok(answer) => last.send("done", &answer),
                Err(problem) => last.send("error", &problem.body(&id)),
            }
        });
    });
    let late = too_long(limit).body(&request_id);
    let late = Event::default().event("error").json_data(late).unwrap_or_default();
    respond(receiver, Some((Instant::now() + limit, late)), CancelOnDrop(ticket))
}

/// Streams events that `work` sends until it ends.
pub(crate) fn events_of<F>(work: impl FnOnce(EventSender) -> F) -> Response
where
    F: Future<Output = ()> + Send + 'static,
{
    let (sender, receiver) = unbounded_channel();
    let working = tokio::spawn(work(EventSender(sender)));
    // Dropped with the connection, it ends the work.
    let end = AbortOnDrop(working.abort_handle());
    respond(receiver, None, end)
}

struct AbortOnDrop(tokio::task::AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn respond<G: Send + 'static>(
    receiver: UnboundedReceiver<Event>,
    deadline: Option<(Instant, Event)>,
    guard: G,
) -> Response {
    let state = (receiver, deadline, Some(guard));
    let events = stream::unfold(state, |(mut receiver, deadline, guard)| async move {
        guard.as_ref()?;
        match deadline {
            None => receiver.recv().await.map(|event| (Ok::<_, Infallible>(event), (receiver, None, guard))),
            Some((moment, late)) => match timeout_at(moment, receiver.recv()).await {
                Ok(event) => event.map(|event| (Ok(event), (receiver, Some((moment, late)), guard))),
                // The guard goes first: what takes too long is cancelled.
                Err(_) => {
                    drop(guard);
                    Some((Ok(late), (receiver, None, None)))
                }
            },
        }
    });
    Sse::new(events).keep_alive(KeepAlive::new().interval(Duration::from_secs(10))).into_response()
}
