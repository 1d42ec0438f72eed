//! Reloads: the config's file is read again while the publisher runs, on a thread of its own. Either every
//! changed setting is applied, or none. The publish thread carries out what concerns the stream.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::AcqRel;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};

use crate::config::Config;
use crate::config::settings::{Setting, compare, shown};
use crate::error::PublisherError;
use crate::plan::Plan;
use crate::repair::audit;
use crate::state::Shared;
use crate::state::command::{Command, CommandSender, ReloadRequest, ReplyTo};
use crate::state::reload::Change;
use crate::state::thread::{StopOnFailure, Thread, spawn};

/// Interval between looks at the signal and at the end of the session.
const LOOK: Duration = Duration::from_millis(50);
/// Time that the publish thread may take.
const APPLY_MAX: Duration = Duration::from_secs(10);

/// The parts of a reload outside the publisher.
///
/// ```
/// # use std::sync::Arc;
/// # use tickcast_publisher::internal::{ReloadHooks, Service};
/// # fn f(service: Service) {
/// let requested = Arc::default();
/// let service = service.reloading(ReloadHooks { requested, set_log: None });
/// # }
/// ```
pub struct ReloadHooks {
    /// Requests a reload once it is set; a signal sets it.
    pub requested: Arc<AtomicBool>,
    /// Changes the lines that are logged; `None` if the config does not select them.
    pub set_log: Option<SetLog>,
}

/// Changes the lines that are logged, as RUST_LOG selects them.
pub type SetLog = Box<dyn Fn(&str) + Send>;

/// The thread of reloads, before it starts.
pub(crate) struct Reloads {
    hooks: ReloadHooks,
    sender: Sender<ReloadRequest>,
    receiver: Receiver<ReloadRequest>,
}

impl Reloads {
    pub(crate) fn new(hooks: ReloadHooks) -> Self {
        let (sender, receiver) = unbounded();
        Self {
            hooks,
            sender,
            receiver,
        }
    }

    /// Returns the end that takes the requests of clients.
    pub(crate) fn requests(&self) -> Sender<ReloadRequest> {
        self.sender.clone()
    }

    /// Starts the thread, which serves until the publisher shuts down.
    ///
    /// # Errors
    /// Returns [`PublisherError::System`] if the thread can't be started.
    pub(crate) fn start(
        self,
        config: Config,
        shared: Arc<Shared>,
        commands: CommandSender,
    ) -> Result<Thread<()>, PublisherError> {
        let guard = StopOnFailure::new(shared.clone());
        let reloader = Reloader {
            reloads: self,
            config,
            shared,
            commands,
        };
        spawn("reload", None, move || {
            reloader.run();
            guard.of(Ok(()))
        })
    }
}

struct Reloader {
    reloads: Reloads,
    /// The running config.
    config: Config,
    shared: Arc<Shared>,
    commands: CommandSender,
}

impl Reloader {
    fn run(mut self) {
        while !self.shared.is_shutting_down() {
            match self.reloads.receiver.recv_timeout(LOOK) {
                Ok(ReloadRequest { reply, .. }) if reply.is_late(Instant::now()) => {}
                Ok(ReloadRequest { client, reply }) => reply.send(self.serve(&client)),
                Err(RecvTimeoutError::Timeout) => {
                    if self.reloads.hooks.requested.swap(false, AcqRel) {
                        // The log has the outcome.
                        let _ = self.serve("SIGHUP");
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Reloads for this client, and records the outcome.
    fn serve(&mut self, client: &str) -> Result<Vec<String>, Vec<String>> {
        let outcome = self.reload();
        let (what, lines) = match &outcome {
            Ok(lines) => ("reloaded", lines),
            Err(lines) => ("reload_refused", lines),
        };
        for line in lines {
            match &outcome {
                Ok(_) => tracing::info!("reloaded {line}"),
                Err(_) => tracing::error!("not reloaded: {line}"),
            }
        }
        let why = lines.join("; ");
        let of = audit::Of {
            client: Some(client),
            why: Some(&why),
            ..audit::Of::default()
        };
        audit::write_entry(what, of);
        self.shared.reloads.count(outcome.is_ok());
        outcome
    }

    /// Reads the file and applies every changed setting. Returns a line for each; if any can't be applied,
    /// applies none and returns the reasons.
    fn reload(&mut self) -> Result<Vec<String>, Vec<String>> {
        let Some(file) = self.config.text.file() else {
            return Err(vec!["this publisher's config has no file".into()]);
        };
        let planned = Config::read(file).and_then(Plan::new);
        let plan = planned.map_err(|error| vec![error.to_string()])?;
        let settings = compare(&shown(&self.config), &shown(&plan.config));
        let is_changed = |setting: &&Setting| !setting.is_same();
        let changed: Vec<&Setting> = settings.iter().filter(is_changed).collect();
        let refused: Vec<String> = (changed.iter())
            .filter_map(|setting| self.why_not(setting))
            .collect();
        if !refused.is_empty() {
            return Err(refused);
        }
        let is_of_symbols = |it: &&Setting| it.path.ends_with(".symbols");
        let rules = changed.iter().any(is_of_symbols).then_some(plan.rules);
        let is_other = plan.config.repair != self.config.repair;
        let budgets = is_other.then_some(plan.config.repair);
        if rules.is_some() || budgets.is_some() {
            let applied = self.apply(Change { rules, budgets });
            applied.map_err(|why| vec![why])?;
        }
        if let Some(set_log) = &self.reloads.hooks.set_log {
            set_log(plan.config.log());
        }
        for warning in plan.warnings {
            tracing::warn!("{warning}");
        }
        let lines = changed.iter().map(ToString::to_string).collect();
        self.shared.show_config(&plan.config);
        self.config = plan.config;
        Ok(lines)
    }

    /// Returns the reason why a changed setting can't be applied, if there is one.
    fn why_not(&self, setting: &Setting) -> Option<String> {
        if !setting.is_reloaded() {
            return Some(setting.to_string());
        }
        let has_no_effect = setting.path == "log" && self.reloads.hooks.set_log.is_none();
        has_no_effect.then(|| "log: RUST_LOG takes its place; restart without RUST_LOG".into())
    }

    /// Lets the publish thread carry out a change, and waits for it.
    fn apply(&self, change: Change) -> Result<(), String> {
        let (sender, replied) = bounded(1);
        let until = Instant::now() + APPLY_MAX;
        let take = move |applied| drop(sender.send(applied));
        self.commands.send(Command::Change {
            change,
            reply: ReplyTo::new(until, take),
        });
        // A reply in the last moment may be under way.
        let wait = APPLY_MAX + Duration::from_secs(1);
        replied.recv_timeout(wait).unwrap_or_else(|error| {
            Err(match error {
                RecvTimeoutError::Timeout => "the publish thread gave no answer in time".into(),
                RecvTimeoutError::Disconnected => "this publisher is ending its session".into(),
            })
        })
    }
}
