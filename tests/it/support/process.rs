//! Children that die with the test run: [`kill_all`] ends them at its normal end, the kernel when the run is killed.
//!
//! The kernel's parent-death signal fires when the *thread* that spawned ends, so all children are spawned by
//! one thread that never ends; spawned from a test's own thread, a shared broker would die with the first
//! test. Output goes to a log file, whose end is part of every error.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::{Error, Result, lost, traced};

/// How many of a log's last lines go into an error.
const TAIL: usize = 25;
/// How often a child is asked whether it is ready or has ended.
const STEP: Duration = Duration::from_millis(25);

/// One child, killed when dropped.
pub(crate) struct Process {
    name: String,
    log: PathBuf,
    child: Arc<Mutex<Child>>,
}

impl Process {
    /// Starts `command` with its output appended to `log`.
    pub(crate) fn spawn(name: &str, command: Command, log: &Path) -> Result<Self> {
        Self::spawn_reading(name, command, Stdio::null(), log)
    }

    /// As [`Process::spawn`], with a standard input that [`Process::write_line`] writes to.
    pub(crate) fn spawn_listening(name: &str, command: Command, log: &Path) -> Result<Self> {
        Self::spawn_reading(name, command, Stdio::piped(), log)
    }

    /// As [`Process::spawn`], with `input` as its standard input.
    pub(crate) fn spawn_reading(
        name: &str,
        mut command: Command,
        input: impl Into<Stdio>,
        log: &Path,
    ) -> Result<Self> {
        let output = append_to(log).map_err(|error| Error(format!("open log {}: {error}", log.display())))?;
        let errors =
            output.try_clone().map_err(|error| Error(format!("open log {}: {error}", log.display())))?;
        command.stdin(input).stdout(output).stderr(errors);
        traced::follow(&mut command, log);
        let program = command.get_program().to_string_lossy().into_owned();
        let child = spawn_on_permanent_thread(command)
            .map_err(|error| Error(format!("start {name} with {program}: {error}")))?;
        let child = Arc::new(Mutex::new(child));
        live().push(Arc::clone(&child));
        Ok(Self { name: name.to_owned(), log: log.to_owned(), child })
    }

    /// The child's process id.
    pub(crate) fn id(&self) -> u32 {
        locked(&self.child).id()
    }

    /// The child's exit status, once it has ended.
    pub(crate) fn ended(&self) -> Option<ExitStatus> {
        locked(&self.child).try_wait().ok().flatten()
    }

    /// Sends `signal`; refused when the child has ended, since its process id may have been reused.
    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        let mut child = locked(&self.child);
        if let Ok(Some(status)) = child.try_wait() {
            return Err(self.error(&format!("send {signal:?} to {}: it has ended ({status})", self.name)));
        }
        kill_process(Pid::from_child(&child), signal)
            .map_err(|error| Error(format!("send {signal:?} to {}: {error}", self.name)))
    }

    /// SIGKILL, and wait until it is gone.
    pub(crate) fn kill(&self) {
        end(&self.child);
    }

    /// Waits for the child's end, at most `limit` of [`lost::fair`] time.
    pub(crate) async fn wait(&self, limit: Duration) -> Result<ExitStatus> {
        let began = Instant::now();
        while lost::fair(began) < limit {
            if let Some(status) = self.ended() {
                return Ok(status);
            }
            tokio::time::sleep(STEP).await;
        }
        Err(self.error(&format!("{} has not ended within {limit:?}", self.name)))
    }

    /// Waits until the child has died of SIGKILL; any other end is an error.
    pub(crate) async fn killed(&self, limit: Duration) -> Result<()> {
        let status = self.wait(limit).await?;
        if status.signal() == Some(Signal::KILL.as_raw()) {
            return Ok(());
        }
        Err(self.error(&format!("{} was not killed: it ended with {status}", self.name)))
    }

    /// Waits until `probe` holds, at most `limit` of [`lost::fair`] time; fails at once when the child ends instead.
    pub(crate) async fn ready(&self, limit: Duration, mut probe: impl AsyncFnMut() -> bool) -> Result<()> {
        let began = Instant::now();
        while lost::fair(began) < limit {
            if let Some(status) = self.ended() {
                return Err(self.error(&format!("{} ended before it was ready ({status})", self.name)));
            }
            if probe().await {
                return Ok(());
            }
            tokio::time::sleep(STEP).await;
        }
        Err(self.error(&format!("{} is not ready after {limit:?}", self.name)))
    }

    /// Writes a line to the child's standard input; a paused child reads it once resumed.
    pub(crate) fn write_line(&self, line: &str) -> Result<()> {
        let written = match &mut locked(&self.child).stdin {
            Some(stdin) => writeln!(stdin, "{line}"),
            None => Err(io::Error::other("it was started without one")),
        };
        written.map_err(|error| {
            self.error(&format!("write {line:?} to the standard input of {}: {error}", self.name))
        })
    }

    /// All the child has written so far, to either of its outputs.
    pub(crate) fn said(&self) -> String {
        fs::read(&self.log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    /// Waits until the child has written this line.
    pub(crate) async fn until_said(&self, line: &str, limit: Duration) -> Result<()> {
        self.ready(limit, async || self.said().lines().any(|said| said == line))
            .await
            .map_err(|error| Error(format!("wait for {} to say {line:?}: {error}", self.name)))
    }

    /// `text` with the end of the child's log below it.
    pub(crate) fn error(&self, text: &str) -> Error {
        Error(format!("{text}; end of {}:\n{}", self.log.display(), tail(&self.log)))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.error(&format!("a test failed while it used {}", self.name)));
        }
        self.kill();
        live().retain(|child| !Arc::ptr_eq(child, &self.child));
    }
}

/// Kills every child still running; the last act of a run.
pub(crate) fn kill_all() {
    let children = std::mem::take(&mut *live());
    children.iter().for_each(end);
}

fn end(child: &Arc<Mutex<Child>>) {
    let mut child = locked(child);
    // Both fail only for a child that has ended already.
    child.kill().ok();
    child.wait().ok();
}

fn live() -> MutexGuard<'static, Vec<Arc<Mutex<Child>>>> {
    static LIVE: Mutex<Vec<Arc<Mutex<Child>>>> = Mutex::new(Vec::new());
    locked(&LIVE)
}

/// A panic leaves the list and the handles consistent: nothing is half done under these locks.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn append_to(log: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(log)
}

fn tail(log: &Path) -> String {
    let text = fs::read(log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(TAIL)..].join("\n")
}

struct SpawnRequest {
    command: Command,
    reply: mpsc::SyncSender<io::Result<Child>>,
}

fn spawn_on_permanent_thread(command: Command) -> io::Result<Child> {
    static REQUESTS: OnceLock<mpsc::Sender<SpawnRequest>> = OnceLock::new();
    let requests = REQUESTS.get_or_init(|| {
        let (sender, receiver) = mpsc::channel::<SpawnRequest>();
        // Ends only with the process: the sender is in a static.
        std::thread::spawn(move || {
            for mut request in receiver {
                let child = die_with_parent(&mut request.command).spawn();
                request.reply.send(child).ok();
            }
        });
        sender
    });
    let (reply, answer) = mpsc::sync_channel(1);
    let request = SpawnRequest { command, reply };
    requests.send(request).map_err(|_| io::Error::other("the spawning thread is gone"))?;
    answer.recv().map_err(|_| io::Error::other("the spawning thread is gone"))?
}

#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "only the child itself can ask for its parent-death signal")]
fn die_with_parent(command: &mut Command) -> &mut Command {
    use std::os::unix::process::CommandExt;

    let parent = rustix::process::getpid();
    // SAFETY: between fork and exec the closure makes two system calls; it allocates nothing and takes no
    // lock.
    unsafe {
        command.pre_exec(move || {
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            // The parent may have died before the line above; then no signal comes.
            if rustix::process::getppid() == Some(parent) {
                Ok(())
            } else {
                Err(rustix::io::Errno::SRCH.into())
            }
        })
    }
}

/// Elsewhere children end with a run that ends by itself, not with one that is killed.
#[cfg(not(target_os = "linux"))]
fn die_with_parent(command: &mut Command) -> &mut Command {
    command
}
