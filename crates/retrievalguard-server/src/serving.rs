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
use tokio::sync::watch;
use tokio::time::Sleep;
use tower_service::Service as _;

use crate::app::App;
use crate::connections::{Connections, CountedBody, RunningRequests, refuse};
use crate::gallery_writer::Turn;
use crate::origin::is_host_name;
use crate::problem::Problem;
use crate::search::SharedGradients;
use crate::service::Service;
use crate::{OpenError, Settings, api};

/// Longest that a client may take to send the head of a request, and that a connection may lie idle.
const HEAD: Duration = Duration::from_secs(10);

/// Longest that a client may read nothing of what is sent to it.
const TAKING: Duration = Duration::from_secs(30);

/// Longest that the errors of cancelled requests, and closing their connections, may take.
const LAST_WORDS: Duration = Duration::from_secs(5);

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

    fn is_asked(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until the service is asked to end.
    async fn heard(&self) {
        // No error: this very value holds the sender.
        let _ = self.0.subscribe().wait_for(|stop| *stop).await;
    }
}

/// Why the gallery in service stays.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ReloadError(String);

/// Puts the gallery that is on the disk in the place of the one in service, from anywhere.
#[derive(Clone)]
pub struct Reloader(Arc<Service>);

impl Reloader {
    /// Waits for a reload that is running, then reloads; `false` if the disk has what was served already.
    pub fn reload(&self) -> Result<bool, ReloadError> {
        match self.0.reload(Turn::Wait) {
            Ok(reloaded) => Ok(reloaded.before != reloaded.after.version()),
            Err(problem) => Err(ReloadError(problem.message)),
        }
    }
}

/// A service that listens.
pub struct Serving {
    app: App,
    listener: std::net::TcpListener,
    stop: Stop,
}

impl Serving {
    /// Opens everything and begins to listen; requests are answered by [`Serving::run`].
    pub fn open(
        address: SocketAddr,
        settings: Settings,
        embedder: Arc<OnnxEmbedder>,
        gradients: Option<SharedGradients>,
    ) -> Result<Self, OpenError> {
        if !address.ip().is_loopback() && settings.tokens.is_empty() {
            return Err(OpenError::Unguarded { address: address.to_string() });
        }
        settings.check()?;
        if let Some(found) = settings.hosts.iter().find(|host| !is_host_name(host)) {
            return Err(OpenError::Host { found: found.clone() });
        }
        let failed = |source| OpenError::Listen { address: address.to_string(), source };
        let listener = std::net::TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let app = App::open(settings, embedder, gradients)?;
        Ok(Self { app, listener, stop: Stop(watch::Sender::new(false)) })
    }

    /// Where it listens.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// What ends it.
    pub fn stop(&self) -> Stop {
        self.stop.clone()
    }

    /// What reloads its gallery.
    pub fn reloader(&self) -> Reloader {
        Reloader(Arc::clone(&self.app.service))
    }

    /// Answers requests until it is stopped.
    ///
    /// From then on new requests are refused, while running ones have time to finish.
    pub fn run(self) -> io::Result<()> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("connections")
            .enable_all()
            .build()?;
        let app = self.app.clone();
        let result = runtime.block_on(self.serve());
        // Threads that nobody waits for any more end with the scheduler.
        app.close();
        runtime.shutdown_timeout(LAST_WORDS);
        result
    }

    async fn serve(self) -> io::Result<()> {
        let Self { app, listener, stop } = self;
        let listener = TcpListener::from_std(listener)?;
        let limits = &app.service.settings.limits;
        let most = u32::try_from(limits.connections).unwrap_or(u32::MAX);
        let connections = Arc::new(Connections::new(most, limits.connections_per_client));
        let (running, end) = (RunningRequests::default(), watch::Sender::new(false));
        let lasting = async {
            stop.heard().await;
            wind_up(&app, &running).await;
        };
        // Connections are accepted to the end, so that clients get a refusal instead of waiting.
        tokio::select! {
            never = accept(&listener, &app, &connections, &running, (&stop, &end)) => match never {},
            () = lasting => {}
        }
        drop(listener);
        end.send_replace(true);
        if tokio::time::timeout(LAST_WORDS, connections.all_closed()).await.is_err() {
            tracing::warn!("some connections did not close in time");
        }
        Ok(())
    }
}

/// Refuses new requests and waits for running ones; those that take too long get an error.
async fn wind_up(app: &App, running: &RunningRequests) {
    tracing::info!("stopping: no new requests");
    app.begin_closing();
    if tokio::time::timeout(app.service.settings.grace, running.none()).await.is_ok() {
        return;
    }
    tracing::warn!("some requests did not end in time and are cancelled");
    let service = Arc::clone(&app.service);
    let given_up = tokio::task::spawn_blocking(move || service.scheduler.close());
    if tokio::time::timeout(LAST_WORDS, running.none()).await.is_err() {
        tracing::warn!("some clients did not read the end of their answers");
    }
    // It ends with the batches that are being run; whoever waited for them is gone.
    drop(given_up);
}

/// Accepts connections for as long as it is polled.
async fn accept(
    listener: &TcpListener,
    app: &App,
    connections: &Arc<Connections>,
    running: &RunningRequests,
    (stop, end): (&Stop, &watch::Sender<bool>),
) -> Infallible {
    let (router, service) = (api::router(app), &app.service);
    loop {
        // While the service ends nobody waits for a permit: whoever finds none is refused with the reason.
        let permit = tokio::select! {
            biased;
            () = stop.heard() => None,
            permit = connections.permit() => Some(permit),
        };
        match listener.accept().await {
            Ok((stream, address)) => {
                let permit = permit.or_else(|| connections.try_permit());
                let Some(counted) = permit.and_then(|permit| connections.enter(permit, address.ip())) else {
                    service.metrics.turned_away();
                    let problem = if stop.is_asked() { Problem::closing() } else { connections.too_many() };
                    refuse(stream, &problem);
                    continue;
                };
                let (router, service) = (router.clone(), Arc::clone(service));
                let (running, ending) = (running.clone(), end.subscribe());
                tokio::spawn(async move {
                    connection(stream, address, (router, service, running), ending).await;
                    drop(counted);
                });
            }
            Err(error) => {
                // Most often there are no file descriptors left; others will be closed.
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

/// A connection that ends when its client has not taken anything for too long.
struct WriteTimeout {
    stream: TokioIo<TcpStream>,
    waiting: Option<Pin<Box<Sleep>>>,
}

impl WriteTimeout {
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

impl hyper::rt::Read for WriteTimeout {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: hyper::rt::ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl hyper::rt::Write for WriteTimeout {
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
    (router, service, running): (Router, Arc<Service>, RunningRequests),
    mut ending: watch::Receiver<bool>,
) {
    // Events are small and late ones are useless.
    let _ = stream.set_nodelay(true);
    let answer = service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(ConnectInfo(address));
        let mut router = router.clone();
        // What is refused because the service ends does not keep it from ending.
        let counted = (!service.is_closing()).then(|| running.enter());
        async move {
            let response = router.call(request).await.unwrap_or_else(|never| match never {});
            Ok::<_, Infallible>(response.map(|body| CountedBody { body, _request: counted }))
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .serve_connection(WriteTimeout::new(TokioIo::new(stream)), answer);
    let mut connection = std::pin::pin!(connection);
    let ended = async move {
        // An error means that the service is gone.
        let _ = ending.wait_for(|end| *end).await;
    };
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = ended => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%address, %error, "connection ended");
    }
}
