//! What the service manager hears of the service, if one listens: `sd_notify(3)`.
//!
//! Nothing waits for it and nothing fails for want of it.

/// The service takes requests; `status` is what it says of itself.
#[cfg(unix)]
pub(crate) fn ready(status: &str) {
    use sd_notify::NotifyState::{Ready, Status};

    // A line break would begin another message.
    tell(&[Ready, Status(&status.replace('\n', " "))]);
}

/// The gallery is being replaced; [`ready`] ends it.
#[cfg(unix)]
pub(crate) fn reloading() {
    use sd_notify::NotifyState;

    let now = NotifyState::monotonic_usec_now().ok();
    let messages: Vec<NotifyState<'_>> = std::iter::once(NotifyState::Reloading).chain(now).collect();
    tell(&messages);
}

/// The service ends in an orderly way.
#[cfg(unix)]
pub(crate) fn stopping() {
    tell(&[sd_notify::NotifyState::Stopping]);
}

#[cfg(unix)]
fn tell(messages: &[sd_notify::NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(messages) {
        tracing::warn!(%error, "the service manager cannot be told");
    }
}

#[cfg(not(unix))]
pub(crate) fn ready(_status: &str) {}
