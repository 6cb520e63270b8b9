//! One connector's subscriptions in the state topic, and the changes to them.

use std::collections::BTreeMap;

use model::{
    Acknowledge, DeliveryIntervals, Echo, Gap, GapAccepted, GapState, Key, Nonce, ReceiverReport, Repair,
    StreamStart, Subscription, SubscriptionCommand, SubscriptionCommandDone, SubscriptionPhase, Target,
    Traffic,
};

/// One connector's subscriptions, gaps and requests in the state topic.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SubscriptionState {
    /// By nonce.
    pub subscriptions: BTreeMap<Nonce, Subscription>,
    /// By webhook.
    pub acknowledges: BTreeMap<String, Acknowledge>,
    /// By slug of the hook whose own address was probed; the empty string for the shared address.
    pub echoes: BTreeMap<String, Echo>,
    /// By worker.
    pub heard: BTreeMap<String, ReceiverReport>,
    /// How often deliveries arrive.
    pub paces: DeliveryIntervals,
    /// By [`Gap::id`].
    pub gaps: BTreeMap<String, Gap>,
    /// By the gap they repair.
    pub repairs: BTreeMap<String, Repair>,
    /// Where the stream starts.
    pub start: Option<StreamStart>,
    /// Requests to apply or remove.
    pub requests: SubscriptionRequests,
    /// Gaps that people have accepted, by [`Gap::id`]; each is [`GapState::Accepted`] in `gaps`.
    pub accepted: BTreeMap<String, GapAccepted>,
}

/// The requests of people to apply or remove the subscriptions of a connector.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SubscriptionRequests {
    /// The last one.
    pub command: Option<SubscriptionCommand>,
    /// The last one that was carried out.
    pub done: Option<SubscriptionCommandDone>,
}

impl SubscriptionRequests {
    /// The last request, unless it was carried out.
    #[must_use]
    pub fn pending(&self) -> Option<&SubscriptionCommand> {
        let done = self.done.map(|done| done.number);
        self.command.as_ref().filter(|command| done < Some(command.number))
    }

    /// Whether the last request is to remove.
    #[must_use]
    pub fn is_removed(&self) -> bool {
        self.command.as_ref().is_some_and(|command| command.removed)
    }
}

/// A change to write to the state topic.
#[derive(Debug, Clone, PartialEq)]
pub enum SubscriptionChange {
    /// A subscription has this state.
    Put(Box<Subscription>),
    /// Removes a subscription.
    Forget(Nonce),
    /// Removes an Acknowledge.
    ForgetAcknowledge(String),
    /// Removes a worker's report of deliveries.
    ForgetHeard(String),
    /// How often deliveries arrive.
    Paces(DeliveryIntervals),
    /// A gap has this state.
    Gap(Gap),
    /// A repair is requested.
    Repair(Repair),
    /// The stream starts here.
    Start(StreamStart),
    /// There is no stream any more.
    ForgetStart,
    /// People request to apply or remove.
    Command(SubscriptionCommand),
    /// A request was carried out.
    Done(SubscriptionCommandDone),
    /// People accept a gap.
    Accept(String, GapAccepted),
}

impl SubscriptionChange {
    /// The record's key.
    #[must_use]
    pub fn key(&self, connector: &str) -> Key {
        match self {
            Self::Put(subscription) => subscription.key(),
            Self::Forget(nonce) => Key::state("subscription", &[connector, nonce.as_str()]),
            Self::ForgetAcknowledge(id) => Acknowledge::key(connector, id),
            Self::ForgetHeard(worker) => ReceiverReport::key(connector, worker),
            Self::Paces(_) => DeliveryIntervals::key(connector),
            Self::Gap(gap) => gap.key(),
            Self::Repair(repair) => repair.key(),
            Self::Start(_) | Self::ForgetStart => StreamStart::key(connector),
            Self::Command(_) => SubscriptionCommand::key(connector),
            Self::Done(_) => SubscriptionCommandDone::key(connector),
            Self::Accept(gap, _) => GapAccepted::key(connector, gap),
        }
    }

    /// The record's value; `None` removes the key.
    #[must_use]
    pub fn value(&self) -> Option<serde_json::Value> {
        let value = match self {
            Self::Put(subscription) => serde_json::to_value(subscription),
            Self::Forget(_) | Self::ForgetAcknowledge(_) | Self::ForgetHeard(_) | Self::ForgetStart => {
                return None;
            }
            Self::Paces(paces) => serde_json::to_value(paces),
            Self::Gap(gap) => serde_json::to_value(gap),
            Self::Repair(repair) => serde_json::to_value(repair),
            Self::Start(start) => serde_json::to_value(start),
            Self::Command(command) => serde_json::to_value(command),
            Self::Done(done) => serde_json::to_value(done),
            Self::Accept(_, accepted) => serde_json::to_value(accepted),
        };
        // Plain data with strings as keys always becomes JSON.
        value.ok()
    }
}

impl SubscriptionState {
    /// Applies a change, as reading it back from the topic would.
    pub fn apply(&mut self, change: &SubscriptionChange) {
        match change {
            SubscriptionChange::Put(one) => {
                drop(self.subscriptions.insert(one.nonce.clone(), (**one).clone()))
            }
            SubscriptionChange::Forget(nonce) => drop(self.subscriptions.remove(nonce)),
            SubscriptionChange::ForgetAcknowledge(id) => drop(self.acknowledges.remove(id)),
            SubscriptionChange::ForgetHeard(worker) => drop(self.heard.remove(worker)),
            SubscriptionChange::Paces(paces) => self.paces = paces.clone(),
            SubscriptionChange::Gap(gap) => self.put_gap(gap.id(), Some(gap.clone())),
            SubscriptionChange::Repair(repair) => {
                drop(self.repairs.insert(repair.gap.clone(), repair.clone()))
            }
            SubscriptionChange::Start(start) => self.start = Some(start.clone()),
            SubscriptionChange::ForgetStart => self.start = None,
            SubscriptionChange::Command(command) => self.requests.command = Some(command.clone()),
            SubscriptionChange::Done(done) => self.requests.done = Some(*done),
            SubscriptionChange::Accept(gap, accepted) => self.accept(gap.clone(), Some(*accepted)),
        }
    }

    /// Inserts or replaces a gap, as ACCEPTED if it was accepted and is not over; `None` removes it.
    pub fn put_gap(&mut self, id: String, gap: Option<Gap>) {
        let Some(mut gap) = gap else { return drop(self.gaps.remove(&id)) };
        if self.accepted.contains_key(&id) && !gap.state.is_over() {
            gap.state = GapState::Accepted;
        }
        self.gaps.insert(id, gap);
    }

    /// People accept a gap, or `None` withdraws that.
    pub fn accept(&mut self, id: String, accepted: Option<GapAccepted>) {
        let Some(accepted) = accepted else {
            self.accepted.remove(&id);
            return;
        };
        if let Some(gap) = self.gaps.get_mut(&id).filter(|gap| !gap.state.is_over()) {
            gap.state = GapState::Accepted;
        }
        self.accepted.insert(id, accepted);
    }

    /// Subscriptions of a target that may exist at the provider.
    pub fn living(&self, target: Target) -> impl Iterator<Item = &Subscription> {
        self.subscriptions.values().filter(move |one| one.target == target && one.phase.may_live())
    }

    /// Subscriptions of a target for which the provider sends deliveries.
    pub(crate) fn active(&self, target: Target) -> impl Iterator<Item = &Subscription> {
        self.living(target).filter(|one| one.phase == SubscriptionPhase::Active)
    }

    /// The subscription with this id at the provider, if it is or was one of ours.
    #[must_use]
    pub fn by_id(&self, id: &str) -> Option<&Subscription> {
        self.subscriptions.values().find(|one| one.id.as_deref() == Some(id))
    }

    /// Deliveries of a subscription, as reported by all workers.
    #[must_use]
    pub fn traffic(&self, subscription: &Subscription) -> Option<Traffic> {
        let of = |heard: &ReceiverReport| match subscription.target {
            Target::Accounting(_) => heard.webhooks.get(subscription.id.as_deref()?).copied(),
            target @ Target::Invoicing(_) => heard.hooks.get(&target).copied(),
        };
        let all = self.heard.values().filter_map(of);
        all.reduce(|one, other| Traffic {
            resource: one.resource.or(other.resource),
            last: one.last.max(other.last),
            count: one.count + other.count,
        })
    }

    /// When a delivery of a subscription last became durable.
    #[must_use]
    pub fn last_delivery(&self, subscription: &Subscription) -> Option<i64> {
        self.traffic(subscription).map(|traffic| traffic.last).max(subscription.times.last_delivery)
    }

    /// Whether another subscription of the target has been active since before `since`, so that no deliveries are missing.
    #[must_use]
    pub fn is_covered(&self, target: Target, except: &Nonce, since: i64) -> bool {
        self.active(target).any(|other| {
            other.nonce != *except && other.times.active_since.is_some_and(|active| active <= since)
        })
    }
}
