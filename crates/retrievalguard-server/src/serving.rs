//! Connections: accepted, timed, counted, and ended in an orderly way.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use retrievalguard_encoder::engine::OnnxEmbedder;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::Sleep;
use tower_service::Service as _;

use crate::service::{Service, SharedSlopes};
use crate::{OpenError, Settings, api};

/// Longest that a client may take to send the head of a request.
const HEAD: Duration = Duration::from_secs(10);

/// Longest that a client may take nothing of what is sent to it.
const TAKING: Duration = Duration::from_secs(30);

/// Threads that move bytes; the work is done elsewhere.
const THREADS: usize = 2;

/// Ends a service from anywhere.
#[derive(Clone)]
pub struct Stop(watch::Sender<bool>);

impl Stop {
    /// Asks the service to end; requests that are being answered have their time.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }
}

/// A service that listens.
pub struct Serving {
    service: Arc<Service>,
    listener: std::net::TcpListener,
    stop: Stop,
}

impl Serving {
    /// Opens everything and begins to listen; requests are answered by [`Serving::run`].
    pub fn open(
        address: SocketAddr,
        settings: Settings,
        embedder: Arc<OnnxEmbedder>,
        slopes: Option<SharedSlopes>,
    ) -> Result<Self, OpenError> {
        if !address.ip().is_loopback() && settings.tokens.is_empty() {
            return Err(OpenError::Unguarded { address: address.to_string() });
        }
        let failed = |source| OpenError::Listen { address: address.to_string(), source };
        let listener = std::net::TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let service = Service::open(settings, embedder, slopes)?;
        Ok(Self { service, listener, stop: Stop(watch::Sender::new(false)) })
    }

    /// Where it listens.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// What ends it.
    pub fn stop(&self) -> Stop {
        self.stop.clone()
    }

    /// Answers requests until it is stopped.
    pub fn run(self) -> io::Result<()> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("connections")
            .enable_all()
            .build()?;
        let result = runtime.block_on(self.accept());
        // Threads that nobody waits for any more end with the scheduler.
        self.service.close();
        runtime.shutdown_timeout(Duration::from_secs(5));
        result
    }

    async fn accept(&self) -> io::Result<()> {
        let listener = TcpListener::from_std(self.listener.try_clone()?)?;
        let router = api::router(&self.service);
        let most = self.service.settings.limits.connections;
        let places = Arc::new(Semaphore::new(most));
        let mut stopping = self.stop.0.subscribe();
        loop {
            // A place first: beyond the limit, connections wait in the operating system.
            let next = async {
                let place = Arc::clone(&places).acquire_owned().await.map_err(io::Error::other)?;
                Ok::<_, io::Error>((place, listener.accept().await?))
            };
            let accepted = tokio::select! {
                accepted = next => accepted,
                _ = stopping.wait_for(|stop| *stop) => break,
            };
            match accepted {
                Ok((place, (stream, address))) => {
                    let (router, stopping) = (router.clone(), self.stop.0.subscribe());
                    tokio::spawn(async move {
                        connection(stream, address, router, stopping).await;
                        drop(place);
                    });
                }
                Err(error) => {
                    // For want of file descriptors, most often; others will be given back.
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
        drop(listener);
        tracing::info!("stopping: no new requests");
        self.service.begin_closing();
        let everyone = places.acquire_many(u32::try_from(most).unwrap_or(u32::MAX));
        if tokio::time::timeout(self.service.settings.grace, everyone).await.is_err() {
            tracing::warn!("some requests did not end in time and are given up");
        }
        Ok(())
    }
}

/// A connection that ends when its client has not taken anything for too long.
struct Impatient {
    stream: TokioIo<TcpStream>,
    waiting: Option<Pin<Box<Sleep>>>,
}

impl Impatient {
    fn new(stream: TokioIo<TcpStream>) -> Self {
        Self { stream, waiting: None }
    }

    /// Passes a result on, and counts the time in which there is none.
    fn watched(
        &mut self,
        context: &mut Context<'_>,
        result: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if result.is_ready() {
            self.waiting = None;
            return result;
        }
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(tokio::time::sleep(TAKING)));
        match waiting.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl hyper::rt::Read for Impatient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: hyper::rt::ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl hyper::rt::Write for Impatient {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watched(context, result)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(context, pieces);
        self.watched(context, result)
    }
}

/// One connection, until its client leaves or the service ends.
async fn connection(
    stream: TcpStream,
    address: SocketAddr,
    router: Router,
    mut stopping: watch::Receiver<bool>,
) {
    // Events are small and late ones are useless.
    let _ = stream.set_nodelay(true);
    let answer = service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(ConnectInfo(address));
        let mut router = router.clone();
        async move { Ok::<_, Infallible>(router.call(request).await.unwrap_or_else(|never| match never {})) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .serve_connection(Impatient::new(TokioIo::new(stream)), answer);
    let mut connection = std::pin::pin!(connection);
    let stopped = async move {
        // An error means that nobody can stop the service any more.
        let _ = stopping.wait_for(|stop| *stop).await;
    };
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stopped => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%address, %error, "connection ended");
    }
}
