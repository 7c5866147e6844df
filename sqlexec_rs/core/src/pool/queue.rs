//! The queue between callers and workers: one line per batch, served round-robin, with a bounded number of tasks.
//!
//! A worker takes one task at a time from the next line, so a batch of thousands does not delay a batch of ten, and
//! an endless query blocks a single thread. Batches that find no room are admitted in arrival order.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::error::PoolError;
use crate::locks::lock;
use crate::outcome::Outcome;
use crate::pool::job::JobState;
use crate::request::InFlightQuery;

/// Interval at which a caller that waits for room is asked whether to continue.
const ASK_PERIOD: Duration = Duration::from_millis(50);

/// The ticket of returned queries, which no batch has.
const RETURNED: u64 = u64::MAX;

/// Work for a thread.
pub(crate) enum Task {
    /// Run a query.
    Run(Arc<InFlightQuery>),
    /// Deliver a cached outcome to a job. This is a task because a comparison may follow, which the caller's thread
    /// should not run.
    Deliver(Arc<JobState>, u32, Arc<Outcome>),
    /// Free the remains of a job.
    Free(Arc<JobState>),
}

/// Lines of tasks.
pub(crate) struct Queue {
    max_tasks: usize,
    state: Mutex<QueueState>,
    has_work: Condvar,
    has_room: Condvar,
}

#[derive(Default)]
struct QueueState {
    lines: VecDeque<BatchTasks>,
    n_tasks: usize,
    /// Tasks for which room is reserved but that have not been added.
    n_reserved: usize,
    /// Batches that wait for room, in arrival order.
    tickets: VecDeque<u64>,
    n_tickets: u64,
    /// A job that its caller has dropped, to be freed by an idle thread.
    finished: Option<Arc<JobState>>,
    /// Number of threads that wait for work.
    n_idle: usize,
    is_closed: bool,
}

/// The waiting tasks of a batch.
struct BatchTasks {
    /// The batch's ticket.
    ticket: u64,
    tasks: VecDeque<Task>,
}

impl Queue {
    /// Creates an empty queue with room for `max_tasks` tasks (at least one).
    pub(crate) fn new(max_tasks: usize) -> Self {
        let max_tasks = max_tasks.max(1);
        Self { max_tasks, state: Mutex::default(), has_work: Condvar::new(), has_room: Condvar::new() }
    }

    /// Waits for room for `n` tasks, or for an empty queue, and reserves it. Returns the ticket for `add`, which must
    /// follow.
    ///
    /// `keep_waiting` is called several times per second, without the lock; false ends the wait.
    pub(crate) fn reserve(&self, n: usize, keep_waiting: &mut dyn FnMut() -> bool) -> Result<u64, PoolError> {
        let mut state = self.lock();
        let ticket = state.n_tickets;
        state.n_tickets += 1;
        if n == 0 {
            return Ok(ticket);
        }
        state.tickets.push_back(ticket);
        let result = loop {
            if state.is_closed {
                break Err(PoolError::Closed);
            }
            if state.tickets.front() == Some(&ticket) && state.has_room_for(n, self.max_tasks) {
                state.n_reserved += n;
                break Ok(ticket);
            }
            let (next, waited) = self.has_room.wait_timeout(state, ASK_PERIOD).unwrap_or_else(PoisonError::into_inner);
            state = next;
            if waited.timed_out() {
                drop(state);
                let is_wanted = keep_waiting();
                state = self.lock();
                if !is_wanted {
                    break Err(PoolError::Interrupted);
                }
            }
        };
        state.tickets.retain(|waiting| *waiting != ticket);
        let has_waiters = !state.tickets.is_empty();
        drop(state);
        if has_waiters {
            self.has_room.notify_all(); // the next batch may fit as well
        }
        result
    }

    /// Adds tasks of a batch to its line, using its reserved room. Returns false if the queue is closed.
    pub(crate) fn add(&self, ticket: u64, tasks: impl ExactSizeIterator<Item = Task>, n_reserved: usize) -> bool {
        let n = tasks.len();
        let mut state = self.lock();
        state.n_reserved -= n_reserved;
        if state.is_closed {
            return false;
        }
        if n > 0 {
            state.n_tasks += n;
            match state.lines.iter_mut().find(|line| line.ticket == ticket) {
                Some(line) => line.tasks.extend(tasks),
                None => state.lines.push_back(BatchTasks { ticket, tasks: tasks.collect() }),
            }
        }
        let has_waiters = n < n_reserved && !state.tickets.is_empty();
        let n_idle = state.n_idle;
        drop(state);
        if n == 1 && n_idle > 0 {
            self.has_work.notify_one();
        } else if n > 1 && n_idle > 0 {
            self.has_work.notify_all();
        }
        if has_waiters {
            self.has_room.notify_all();
        }
        true
    }

    /// Lets an idle thread free a job; without one, the caller drops it here.
    pub(crate) fn free(&self, job: Arc<JobState>) {
        let mut state = self.lock();
        if state.n_idle > 0 && state.finished.is_none() && !state.is_closed {
            state.finished = Some(job);
            drop(state);
            self.has_work.notify_one();
        }
    }

    /// Takes the next task; returns it with the number of remaining tasks. Calls `rest` before waiting. Returns
    /// `None` once the queue is closed.
    pub(crate) fn take(&self, rest: &mut dyn FnMut()) -> Option<(Task, usize)> {
        let mut state = self.lock();
        let mut has_rested = false;
        loop {
            if state.is_closed {
                return None;
            }
            if let Some(task) = state.pop() {
                let n_left = state.n_tasks;
                self.unlock_with_room(state);
                return Some((task, n_left));
            }
            if has_rested {
                if let Some(job) = state.finished.take() {
                    return Some((Task::Free(job), 0));
                }
                state.n_idle += 1;
                state = self.has_work.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.n_idle -= 1;
            } else {
                drop(state);
                rest();
                has_rested = true;
                state = self.lock();
            }
        }
    }

    /// Takes the next task without waiting, if it runs a query on this database state and at least `n_left` tasks
    /// remain.
    pub(crate) fn take_run(&self, db: u32, n_left: usize) -> Option<Arc<InFlightQuery>> {
        let mut state = self.lock();
        let first = state.lines.front().and_then(|line| line.tasks.front());
        if state.n_tasks <= n_left || !matches!(first, Some(Task::Run(query)) if query.key.db == db) {
            return None;
        }
        let task = state.pop();
        self.unlock_with_room(state);
        match task {
            Some(Task::Run(query)) => Some(query),
            _ => None,
        }
    }

    /// Returns queries to the front of the queue. A closed queue drops them.
    pub(crate) fn return_queries(&self, queries: impl ExactSizeIterator<Item = Arc<InFlightQuery>>) {
        let mut state = self.lock();
        if !state.is_closed && queries.len() > 0 {
            state.n_tasks += queries.len();
            state.lines.push_front(BatchTasks { ticket: RETURNED, tasks: queries.map(Task::Run).collect() });
            drop(state);
            self.has_work.notify_all();
        }
    }

    /// Closes the queue, wakes all threads, and returns the waiting tasks.
    pub(crate) fn close(&self) -> Vec<Task> {
        let mut state = self.lock();
        state.is_closed = true;
        state.n_tasks = 0;
        let left = state.lines.drain(..).flat_map(|line| line.tasks).collect();
        let finished = state.finished.take();
        drop(state);
        drop(finished);
        self.has_work.notify_all();
        self.has_room.notify_all();
        left
    }

    /// Returns the number of tasks waiting.
    pub(crate) fn len(&self) -> usize {
        self.lock().n_tasks
    }

    /// Releases the lock after a task was taken, and wakes callers that wait for room.
    fn unlock_with_room(&self, state: MutexGuard<'_, QueueState>) {
        let has_waiters = !state.tickets.is_empty();
        drop(state);
        if has_waiters {
            self.has_room.notify_all();
        }
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        lock(&self.state)
    }
}

impl QueueState {
    /// Takes the first task of the next line.
    fn pop(&mut self) -> Option<Task> {
        let mut line = self.lines.pop_front()?;
        let task = line.tasks.pop_front()?;
        if !line.tasks.is_empty() {
            self.lines.push_back(line);
        }
        self.n_tasks -= 1;
        Some(task)
    }

    fn has_room_for(&self, n: usize, max_tasks: usize) -> bool {
        let load = self.n_tasks + self.n_reserved;
        load == 0 || load + n <= max_tasks
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::*;
    use crate::pool::job::{ComparisonControl, JobKind, JobState};
    use crate::request::tests::query;

    fn tasks(n: usize) -> Vec<Task> {
        let job = Arc::new(JobState::new(n, ComparisonControl::default(), Arc::default()));
        job.plan(n, JobKind::Execute { slot_of: Vec::new() });
        (0..n as u32).map(|slot| Task::Deliver(Arc::clone(&job), slot, Arc::new(Outcome::cancelled()))).collect()
    }

    fn put(queue: &Queue, n: usize) {
        let ticket = queue.reserve(n, &mut || true).unwrap();
        assert!(queue.add(ticket, tasks(n).into_iter(), n));
    }

    #[test]
    fn idle_thread_frees_a_job_or_else_the_caller_does() {
        let queue = Queue::new(1);
        let job = || Arc::new(JobState::new(1, ComparisonControl::default(), Arc::default()));
        let first = job();
        let weak = Arc::downgrade(&first);
        queue.free(first);
        assert!(weak.upgrade().is_none(), "no thread waits");
        thread::scope(|scope| {
            let thread = scope.spawn(|| matches!(queue.take(&mut || {}), Some((Task::Free(_), 0))));
            while queue.lock().n_idle == 0 {
                thread::yield_now();
            }
            queue.free(job());
            assert!(thread.join().unwrap());
        });
    }

    #[test]
    fn batches_wait_for_room_and_oversized_ones_for_an_empty_queue() {
        let queue = Queue::new(3);
        put(&queue, 2);
        put(&queue, 1);
        let (is_large_in, is_small_in) = (AtomicBool::new(false), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| {
                put(&queue, 5);
                is_large_in.store(true, Ordering::SeqCst);
            });
            while queue.lock().tickets.is_empty() {
                thread::yield_now();
            }
            scope.spawn(|| {
                put(&queue, 1);
                is_small_in.store(true, Ordering::SeqCst);
            });
            while queue.lock().tickets.len() < 2 {
                thread::yield_now();
            }
            // There is room for one task, but the large batch came first and must not be overtaken.
            assert!(queue.take(&mut || ()).is_some() && queue.take(&mut || ()).is_some());
            assert!(!is_large_in.load(Ordering::SeqCst) && !is_small_in.load(Ordering::SeqCst));
            assert!(queue.take(&mut || ()).is_some());
            while !is_large_in.load(Ordering::SeqCst) {
                thread::yield_now();
            }
            (0..5).for_each(|_| assert!(queue.take(&mut || ()).is_some()));
        });
        assert!(is_small_in.load(Ordering::SeqCst));
        assert_eq!(queue.len(), 1);
    }

    #[test]
    fn interrupted_batch_leaves_the_queue_and_closing_ends_waits() {
        let queue = Queue::new(1);
        put(&queue, 1);
        assert!(matches!(queue.reserve(1, &mut || false), Err(PoolError::Interrupted)));
        assert!(queue.lock().tickets.is_empty());
        thread::scope(|scope| {
            let waiter = scope.spawn(|| queue.reserve(1, &mut || true));
            while queue.lock().tickets.is_empty() {
                thread::yield_now();
            }
            assert_eq!(queue.close().len(), 1);
            assert!(matches!(waiter.join().unwrap(), Err(PoolError::Closed)));
        });
        assert!(!queue.add(0, std::iter::empty(), 0));
    }

    #[test]
    fn returned_queries_are_first_and_a_closed_queue_drops_them() {
        let query = |db| Arc::new(query("SELECT 1", db));
        let queue = Queue::new(10);
        put(&queue, 1);
        assert!(queue.take_run(1, 0).is_none(), "the next task is of another kind");
        queue.return_queries([query(1), query(2), query(2)].into_iter());
        assert!(queue.take_run(2, 0).is_none(), "the next task is on another database");
        assert!(queue.take_run(1, 4).is_none(), "too few tasks remain");
        assert!(queue.take_run(1, 3).is_some());
        queue.return_queries([query(3)].into_iter());
        assert!(matches!(queue.take(&mut || ()), Some((Task::Run(query), 3)) if query.key.db == 3));
        assert!(matches!(queue.take(&mut || ()), Some((Task::Deliver(..), 2))), "lines are served in turn");
        assert!(queue.take_run(2, 0).is_some() && queue.take_run(2, 0).is_some() && queue.take_run(2, 0).is_none());
        queue.close();
        queue.return_queries([query(1)].into_iter());
        assert_eq!(queue.len(), 0);
    }

    #[test]
    fn lines_are_served_round_robin() {
        let queue = Queue::new(10);
        put(&queue, 3);
        put(&queue, 2);
        let lines: Vec<usize> = (0..5)
            .map(|_| match queue.take(&mut || ()) {
                Some((Task::Deliver(job, ..), _)) => job.n_slots(),
                _ => 0,
            })
            .collect();
        assert_eq!(lines, [3, 2, 3, 2, 3]);
    }
}
