//! Connections and requests that are open: how many, whose, and when there are none any more.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use hyper::StatusCode;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::access::client_address;
use crate::problem::Problem;

/// The open connections, bounded in number and per client address.
pub(crate) struct Connections {
    permits: Arc<Semaphore>,
    most: u32,
    per_client: usize,
    by_client: Mutex<HashMap<IpAddr, usize>>,
}

/// A connection that is open.
pub(crate) struct Connection {
    connections: Arc<Connections>,
    client: IpAddr,
    _permit: OwnedSemaphorePermit,
}

impl Connections {
    pub(crate) fn new(most: u32, per_client: usize) -> Self {
        let by_client = Mutex::default();
        Self { permits: Arc::new(Semaphore::new(most as usize)), most, per_client, by_client }
    }

    /// Waits for a permit before a connection is accepted: beyond the limit, connections wait in the operating system.
    pub(crate) async fn permit(&self) -> OwnedSemaphorePermit {
        Arc::clone(&self.permits).acquire_owned().await.expect("the permits are never closed")
    }

    /// A permit, if one is free at this moment.
    pub(crate) fn try_permit(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.permits).try_acquire_owned().ok()
    }

    /// Counts a connection of a client, unless the client has too many.
    pub(crate) fn enter(
        self: &Arc<Self>,
        permit: OwnedSemaphorePermit,
        address: IpAddr,
    ) -> Option<Connection> {
        let client = client_address(address);
        let mut by_client = self.by_client();
        let own = by_client.entry(client).or_default();
        if *own >= self.per_client {
            return None;
        }
        *own += 1;
        drop(by_client);
        Some(Connection { connections: Arc::clone(self), client, _permit: permit })
    }

    /// The refusal of a client that has too many connections.
    pub(crate) fn too_many(&self) -> Problem {
        let message =
            format!("this address has {} connections open already, wanted no more", self.per_client);
        let problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, "too_many_connections", message);
        Problem { retry_after: Some(1), ..problem }
    }

    /// Waits until every connection is closed.
    pub(crate) async fn all_closed(&self) {
        let _all = self.permits.acquire_many(self.most).await;
    }

    fn by_client(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.by_client.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Refuses a connection with the reason, without waiting for anything.
pub(crate) fn refuse(stream: TcpStream, problem: &Problem) {
    let id = crate::random_name().unwrap_or_else(|_| "unnamed".to_owned());
    let body = serde_json::to_string(&problem.body(&id)).unwrap_or_default();
    let (status, retry_after) = (problem.status, problem.retry_after.unwrap_or(1));
    let head = format!(
        "HTTP/1.1 {} {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nretry-after: {retry_after}\r\n\
         x-request-id: {id}\r\ncross-origin-resource-policy: same-origin\r\nx-content-type-options: nosniff\r\n\
         connection: close\r\n\r\n",
        status.as_u16(),
        status.canonical_reason().unwrap_or_default(),
        body.len()
    );
    let Ok(mut stream) = stream.into_std() else { return };
    // The buffers of a fresh connection take this; a client that is gone does not hear it.
    let _ = stream.write_all((head + &body).as_bytes());
    let _ = stream.shutdown(Shutdown::Write);
    // What has come already is taken, or the client would see a broken connection instead.
    let _ = stream.read(&mut [0; 4_096]);
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mut by_client = self.connections.by_client();
        if let Some(count) = by_client.get_mut(&self.client) {
            *count -= 1;
            if *count == 0 {
                by_client.remove(&self.client);
            }
        }
    }
}

/// Requests that are being answered.
#[derive(Clone, Default)]
pub(crate) struct RunningRequests(watch::Sender<usize>);

/// A request, until the last of its answer is on its way.
pub(crate) struct RunningRequest(RunningRequests);

impl RunningRequests {
    pub(crate) fn enter(&self) -> RunningRequest {
        self.0.send_modify(|count| *count += 1);
        RunningRequest(self.clone())
    }

    /// Waits until nothing is being answered.
    pub(crate) async fn none(&self) {
        // An error means that nobody can come any more.
        let _ = self.0.subscribe().wait_for(|count| *count == 0).await;
    }
}

impl Drop for RunningRequest {
    fn drop(&mut self) {
        self.0.0.send_modify(|count| *count -= 1);
    }
}

/// A body whose request counts as being answered while it is sent.
pub(crate) struct CountedBody {
    pub(crate) body: Body,
    pub(crate) _request: Option<RunningRequest>,
}

impl HttpBody for CountedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_leaves_connections_to_others_and_gets_its_own_back() {
        let connections = Arc::new(Connections::new(5, 2));
        let permit = || Arc::clone(&connections.permits).try_acquire_owned().unwrap();
        let [first, second] = ["192.0.2.1", "2001:db8::1"].map(|text| text.parse::<IpAddr>().unwrap());
        let held = [connections.enter(permit(), first).unwrap(), connections.enter(permit(), first).unwrap()];
        assert!(connections.enter(permit(), first).is_none());
        let _other = connections.enter(permit(), second).unwrap();
        assert_eq!(connections.permits.available_permits(), 2, "a refused connection takes no permit");
        drop(held);
        assert!(connections.enter(permit(), first).is_some());
        assert_eq!(connections.by_client().len(), 1, "clients that left are forgotten");
    }
}
