//! The table of checks, in order.

mod basics;
mod change;
mod create;
mod failure;
mod lifecycle;
mod loggers;
mod offsets;
mod plugins;
mod read;
mod settings;
pub(crate) mod topics;

pub(crate) use create::{CLASS_NOT_FOUND, expect_start};
pub(crate) use failure::FAILING;
use futures::future::LocalBoxFuture;

use super::client::CheckOutcome;
use super::scene::CheckScene;
use super::subject::Subject;
use super::tools;

/// One requirement on a worker.
pub(crate) struct Check {
    pub(crate) number: u8,
    pub(crate) sentence: &'static str,
    /// Why the check does not apply to this worker, if it does not.
    pub(crate) left_out: fn(&Subject) -> Option<&'static str>,
    pub(crate) run: for<'a> fn(&'a CheckScene<'a>) -> LocalBoxFuture<'a, CheckOutcome>,
}

/// Lists checks: `number "sentence" => function;`, with `unless` and a function for checks that do not apply to every worker.
macro_rules! checks {
    ($($number:literal $sentence:literal => $($function:ident)::+ $(unless $left_out:path)?;)*) => {
        [$(Check {
            number: $number,
            sentence: $sentence,
            left_out: {
                #[allow(unused_variables, reason = "the last one counts")]
                let left_out: fn(&Subject) -> Option<&'static str> = |_| None;
                $(let left_out: fn(&Subject) -> Option<&'static str> = $left_out;)?
                left_out
            },
            run: |scene| Box::pin($($function)::+(scene)),
        }),*]
    };
}

/// All checks.
pub(crate) fn all() -> impl Iterator<Item = Check> {
    api().into_iter().chain(connectors_over_time()).chain(the_rest())
}

#[rustfmt::skip]
fn api() -> [Check; 42] {
    checks! {
        1 "GET / shows version, commit and cluster" => basics::server_info;
        2 "GET /health says healthy" => basics::health;
        3 "GET /connectors is a list of names" => basics::connectors;
        4 "GET /connectors/ is the same list" => basics::connectors_with_slash;
        5 "an unknown path is 404 with an error body" => basics::unknown_path;
        6 "a wrong verb is 405 with an error body" => basics::wrong_verb;
        7 "POST /connectors is 201 with the info and its Location" => create::creates;
        8 "the same name again is 409, with an invalid config 400" => create::twice;
        9 "a body that is not JSON by its type is 415" => create::wrong_content_type;
        10 "a body that is not JSON is refused" => create::malformed;
        11 "an unknown member is refused" => create::unknown_member;
        12 "a config without connector.class is 400" => create::no_class;
        13 "an unknown class is 400 and says so" => create::unknown_class;
        14 "a name in the config that differs is 400" => create::other_name;
        15 "an invalid value is 400 and names key and count" => create::invalid_value;
        16 "an empty name is 400" => create::empty_name;
        17 "blanks around a name are removed" => create::blanks;
        18 "a JSON number in the config becomes a text" => create::number;
        19 "a null in the config is 400" => create::null;
        20 "initial_state STOPPED is honoured" => create::initially_stopped;
        21 "initial_state is read in any case" => create::initially_paused;
        22 "expand=status gives each its status" => read::expand_status;
        23 "expand=info&expand=status gives both" => read::expand_both;
        24 "an unknown expansion is ignored" => read::expand_unknown;
        25 "GET connector is its info with task ids" => read::info;
        26 "GET of an unknown connector is 404" => read::unknown_info;
        27 "GET config is what was sent plus the name" => read::config;
        28 "GET config of an unknown connector is 404" => read::unknown_config;
        29 "status reaches RUNNING" => read::status;
        30 "status of an unknown connector is 404" => read::unknown_status;
        31 "GET tasks shows id and config of each" => read::tasks;
        32 "GET tasks of an unknown connector is 404" => read::unknown_tasks;
        33 "a task's status has no trace while it runs" => read::task_status;
        34 "status of an unknown task is 404" => read::unknown_task;
        35 "status of a task that is no number is 404" => read::task_not_a_number;
        36 "PUT config of an existing connector is 200" => change::put;
        37 "PUT config of a new connector is 201 with Location" => change::put_new;
        38 "PUT config with another name is 400" => change::put_other_name;
        39 "an invalid PUT config is 400 and changes nothing" => change::put_invalid;
        40 "PATCH config changes one key and keeps the others" => change::patch;
        41 "PATCH config with null removes the key" => change::patch_null;
        42 "PATCH config of an unknown connector is 404" => change::patch_unknown;
    }
}

#[rustfmt::skip]
fn connectors_over_time() -> [Check; 23] {
    checks! {
        43 "pause is 202 and reaches connector and tasks, twice" => lifecycle::pause;
        44 "pause of an unknown connector is 404" => lifecycle::pause_unknown;
        45 "resume is 202 and reaches RUNNING" => lifecycle::resume;
        46 "restart is 204 and empty" => lifecycle::restart;
        47 "restart with tasks is 202 and shows RESTARTING" => lifecycle::restart_with_tasks;
        48 "restart of what failed, when nothing has, restarts nothing" => lifecycle::restart_failed_tasks;
        49 "restart with onlyFailed alone is 202" => lifecycle::restart_only_failed;
        50 "restart of an unknown connector is 404" => lifecycle::restart_unknown;
        51 "restart of a task is 204" => lifecycle::restart_task;
        52 "restart of an unknown task is 404" => lifecycle::restart_unknown_task;
        53 "topics has the topic after a record" => topics::topics;
        54 "topics of an unknown connector is an empty list" => topics::unknown;
        55 "topics/reset is 202 and empties the list" => topics::reset;
        56 "GET offsets shows partitions and offsets" => offsets::get;
        57 "PATCH offsets of a running connector is 400" => offsets::patch_running;
        58 "DELETE offsets of a paused connector is 400" => offsets::delete_paused;
        59 "stop is 204 and leaves no tasks, twice" => lifecycle::stop;
        60 "PATCH offsets with none is 400" => offsets::patch_nothing;
        61 "PATCH offsets with a list is refused" => offsets::patch_list;
        62 "PATCH offsets of a stopped connector is shown by GET" => offsets::patch;
        63 "DELETE offsets of a stopped connector empties them, twice" => offsets::delete;
        64 "offsets of an unknown connector are 404" => offsets::unknown;
        65 "resume after stop brings the tasks back" => lifecycle::resume_stopped;
    }
}

#[rustfmt::skip]
fn the_rest() -> [Check; 20] {
    checks! {
        66 "GET /connector-plugins lists sources and sinks" => plugins::connectors;
        67 "connectorsOnly=false adds the other kinds" => plugins::all;
        68 "a plugin's config defines every key in full" => plugins::keys;
        69 "config of an unknown plugin is 404" => plugins::unknown;
        70 "validate of a valid config finds no error" => plugins::validate;
        71 "validate takes the short names of the class" => plugins::validate_short;
        72 "validate answers a bare class and a stray key" => plugins::validate_bare;
        73 "validate of another class than the path's is 400" => plugins::validate_other_class;
        74 "validate hides a password" => plugins::validate_password;
        75 "GET /admin/loggers has levels and the root" => loggers::all;
        76 "an unknown logger is 404" => loggers::unknown;
        77 "PUT of a level lists the loggers it reached" => loggers::put;
        78 "PUT of a level for the cluster is 204, a bad one refused" => loggers::cluster;
        79 "a failed task shows its trace while the connector runs" => failure::shows;
        80 "DELETE is 204 and the connector is gone" => failure::delete;
        81 "without the right password every call is 401" => settings::basic_auth unless settings::no_credentials;
        82 "a secret reaches the task and no answer" => settings::secret unless settings::no_provider;
        83 "kcctl finds what it needs" => tools::kcctl::replay;
        84 "Terraform applies, changes, finds no difference, destroys" => tools::terraform::replay;
        85 "kafka-ui, AKHQ and Console find what they need" => tools::consoles;
    }
}
