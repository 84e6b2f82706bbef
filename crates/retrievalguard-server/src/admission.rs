//! Which requests are admitted: slots, slots per client, and how long the queue may take.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hyper::StatusCode;

use crate::problem::Problem;

/// Admits requests to everything that costs encoder passes.
pub(crate) struct Admission {
    inside: Mutex<Inside>,
    slots: usize,
    slots_per_client: usize,
    seconds: u64,
}

#[derive(Default)]
struct Inside {
    count: usize,
    by_client: HashMap<String, usize>,
    /// Passes that were promised and not run yet.
    promised: u64,
    closing: bool,
}

/// A slot of an admitted request, given back when dropped.
pub(crate) struct AdmissionSlot {
    admission: Arc<Admission>,
    client: String,
    promised: Mutex<u64>,
}

impl Admission {
    pub(crate) fn new(slots: usize, slots_per_client: usize, seconds: u64) -> Self {
        Self { inside: Mutex::default(), slots, slots_per_client, seconds }
    }

    /// Takes a slot, before anything of the request's body is read.
    pub(crate) fn enter(self: &Arc<Self>, client: &str, speed: f64) -> Result<AdmissionSlot, Problem> {
        let mut inside = self.inside();
        if inside.closing {
            return Err(Problem::closing());
        }
        if inside.count >= self.slots {
            let message = format!("all {} request slots are taken", self.slots);
            return Err(Problem::busy(message, self.seconds_for(inside.promised, speed)));
        }
        let own = inside.by_client.get(client).copied().unwrap_or(0);
        if own >= self.slots_per_client {
            let message = format!(
                "{own} requests of this client are being answered, wanted at most {}",
                self.slots_per_client
            );
            let problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, "too_many_requests", message);
            return Err(Problem { retry_after: Some(1), ..problem });
        }
        inside.count += 1;
        *inside.by_client.entry(client.to_owned()).or_default() += 1;
        drop(inside);
        Ok(AdmissionSlot { admission: Arc::clone(self), client: client.to_owned(), promised: Mutex::new(0) })
    }

    /// Admits nobody any more.
    pub(crate) fn close(&self) {
        self.inside().closing = true;
    }

    /// Requests that hold a slot.
    pub(crate) fn count(&self) -> usize {
        self.inside().count
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn seconds_for(&self, passes: u64, speed: f64) -> u64 {
        let seconds = if speed > 0.0 { (passes as f64 / speed).ceil() } else { 1.0 };
        (seconds as u64).clamp(1, self.seconds)
    }
}

impl AdmissionSlot {
    /// Promises encoder passes, unless those promised before would keep them from being run in time.
    pub(crate) fn promise(&self, passes: u64, speed: f64) -> Result<(), Problem> {
        let mut inside = self.admission.inside();
        let (before, limit) = (inside.promised, self.admission.seconds as f64);
        if speed > 0.0 && before > 0 && (before + passes) as f64 / speed > limit {
            let message = format!(
                "{before} encoder passes are waiting at {speed:.0} per second, too many to answer within {limit} s"
            );
            return Err(Problem::busy(message, self.admission.seconds_for(before, speed)));
        }
        inside.promised += passes;
        *self.own() += passes;
        Ok(())
    }

    /// Passes that were run, or are not needed after all.
    pub(crate) fn spend(&self, passes: u64) {
        let mut inside = self.admission.inside();
        let mut own = self.own();
        let passes = passes.min(*own);
        *own -= passes;
        inside.promised -= passes;
    }

    fn own(&self) -> MutexGuard<'_, u64> {
        self.promised.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for AdmissionSlot {
    fn drop(&mut self) {
        let rest = *self.own();
        let mut inside = self.admission.inside();
        inside.promised -= rest;
        inside.count -= 1;
        if let Some(count) = inside.by_client.get_mut(&self.client) {
            *count -= 1;
            if *count == 0 {
                inside.by_client.remove(&self.client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_and_promises_are_bounded_and_come_back() {
        let admission = Arc::new(Admission::new(3, 2, 10));
        let first = admission.enter("a", 100.0).unwrap();
        let second = admission.enter("a", 100.0).unwrap();
        let refused = admission.enter("a", 100.0).err().unwrap();
        assert_eq!((refused.status, refused.retry_after), (StatusCode::TOO_MANY_REQUESTS, Some(1)));
        let third = admission.enter("b", 100.0).unwrap();
        let refused = admission.enter("c", 100.0).err().unwrap();
        assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE);

        // 10 s at 100 per second: 900 passes leave room for 100 more.
        first.promise(900, 100.0).unwrap();
        let refused = second.promise(101, 100.0).err().unwrap();
        assert_eq!((refused.status, refused.retry_after), (StatusCode::SERVICE_UNAVAILABLE, Some(9)));
        second.promise(100, 100.0).unwrap();
        first.spend(500);
        third.promise(400, 100.0).unwrap();
        drop((first, second, third));
        assert_eq!(admission.count(), 0);
        let alone = admission.enter("a", 100.0).unwrap();
        // A request that is alone is never refused for its length; the time limit ends it.
        alone.promise(5_000, 100.0).unwrap();
        alone.spend(9_999);
        admission.close();
        assert_eq!(admission.enter("d", 100.0).err().unwrap().code, "closing");
    }
}
