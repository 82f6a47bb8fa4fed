//! Giving up a start that another thread is in.

use std::fmt;
use std::sync::Arc;

use crate::sync::{Mutex, lock};

/// Lets any thread give up a start. Clones are the same.
#[derive(Clone, Default)]
pub struct Cancel {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// Why, once it is given up.
    reason: Option<String>,
    act: Option<Act>,
}

/// What is done then, told why.
type Act = Box<dyn FnOnce(&str) + Send>;

impl Cancel {
    /// Gives the start up. Only the first reason counts.
    pub fn cancel(&self, reason: &str) {
        let mut state = lock(&self.state);
        if state.reason.is_some() {
            return;
        }
        // First, and with the lock: who sees the reason leaves, and can no longer say it to others.
        state.act.take().into_iter().for_each(|act| act(reason));
        state.reason = Some(reason.to_owned());
    }

    /// Why it is given up, if it is.
    pub fn reason(&self) -> Option<String> {
        lock(&self.state).reason.clone()
    }

    /// Has this done, instead of what was to be done before, once the start is given up; at once if
    /// it has been.
    pub fn on_cancel(&self, act: impl FnOnce(&str) + Send + 'static) {
        let mut state = lock(&self.state);
        match state.reason.clone() {
            None => state.act = Some(Box::new(act)),
            Some(reason) => {
                drop(state);
                act(&reason);
            }
        }
    }
}

impl fmt::Debug for Cancel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cancel").field("reason", &self.reason()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn what_is_given_up_is_acted_on_once() {
        let (told, heard) = channel();
        for before in [true, false] {
            let (cancel, told) = (Cancel::default(), told.clone());
            let act = move |reason: &str| told.send(reason.to_owned()).unwrap();
            if before {
                cancel.on_cancel(act);
                assert_eq!(cancel.reason(), None);
                cancel.clone().cancel("first");
            } else {
                cancel.cancel("first");
                cancel.on_cancel(act);
            }
            cancel.cancel("second");
            assert_eq!(cancel.reason().as_deref(), Some("first"));
            assert_eq!(heard.try_iter().collect::<Vec<_>>(), ["first"]);
        }
    }
}
