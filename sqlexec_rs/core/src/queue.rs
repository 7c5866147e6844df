//! The queue between callers and workers: one line a batch, served in turn.
//!
//! A worker takes one task at a time from the line whose turn it is, so a batch of thousands does not hold up a batch of
//! ten, and a query without end holds one thread and nobody else.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::cache::Flight;
use crate::job::JobState;
use crate::outcome::Outcome;

/// Work for a thread.
pub(crate) enum Task {
    /// Run a query.
    Run(Arc<Flight>),
    /// Hand a kept outcome to a job; a task because a comparison may follow, which is no work for the caller's thread.
    Deliver(Arc<JobState>, u32, Arc<Outcome>),
}

/// Lines of tasks.
#[derive(Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    has_work: Condvar,
}

#[derive(Default)]
struct State {
    lines: VecDeque<VecDeque<Task>>,
    is_closed: bool,
}

impl Queue {
    /// Adds a batch's tasks as a line of their own; false when the queue is closed.
    pub(crate) fn add(&self, tasks: VecDeque<Task>) -> bool {
        let n = tasks.len();
        let mut state = self.lock();
        if state.is_closed {
            return false;
        }
        if n > 0 {
            state.lines.push_back(tasks);
        }
        drop(state);
        if n == 1 {
            self.has_work.notify_one();
        } else if n > 1 {
            self.has_work.notify_all();
        }
        true
    }

    /// Takes the next task, waiting for one; `None` once the queue is closed.
    pub(crate) fn take(&self) -> Option<Task> {
        let mut state = self.lock();
        loop {
            if state.is_closed {
                return None;
            }
            if let Some(mut line) = state.lines.pop_front() {
                let task = line.pop_front();
                if !line.is_empty() {
                    state.lines.push_back(line);
                }
                if task.is_some() {
                    return task;
                }
                continue;
            }
            state = self.has_work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Closes the queue, wakes every worker, and returns the tasks that were waiting.
    pub(crate) fn close(&self) -> Vec<Task> {
        let mut state = self.lock();
        state.is_closed = true;
        let left = state.lines.drain(..).flatten().collect();
        drop(state);
        self.has_work.notify_all();
        left
    }

    /// Returns the number of tasks waiting.
    pub(crate) fn len(&self) -> usize {
        self.lock().lines.iter().map(VecDeque::len).sum()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
