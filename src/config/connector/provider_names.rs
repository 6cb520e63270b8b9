//! Lists of resources, hooks and event kinds: names defined by the provider, or `all`.

use model::{AccountingResource, InvoicingAction, InvoicingEntity, InvoicingHook};

use crate::config::{
    key::{Rule, Violation},
    unknown_keys,
};

/// Kinds of accounting events that can be subscribed to: the last part of their names.
pub(super) const EVENT_KINDS: &[&str] = &["Created", "Updated", "Deleted", "Disabled", "ErrorOccurred"];

const ALL: &str = "all";

pub(crate) const RESOURCES: Rule =
    Rule::custom("names of accounting resources, or all", |text| resources(text).map(drop))
        .remedy("write for example customers,accounts");

pub(crate) const HOOKS: Rule =
    Rule::custom("entity:action pairs of the invoicing API, or all", |text| hooks(text).map(drop))
        .remedy("write for example Customer:Created,SaleInvoice:Updated");

pub(crate) const EVENTS: Rule =
    Rule::custom("Created, Updated, Deleted, Disabled, ErrorOccurred or all", |text| {
        event_kinds(text).map(drop)
    })
    .remedy("write for example Created,Updated");

/// The resources that one item of a list names.
pub(super) fn resources(item: &str) -> Result<Vec<AccountingResource>, Violation> {
    if item == ALL {
        return Ok(AccountingResource::all().collect());
    }
    let known = AccountingResource::all().map(AccountingResource::name);
    let unknown = |_| unknown_name("it is not an accounting resource", known, item);
    item.parse().map(|resource| vec![resource]).map_err(unknown)
}

/// The violation of an unknown name, with the name that was probably meant, or all known names.
fn unknown_name(
    refusal: &'static str,
    known: impl Iterator<Item = &'static str> + Clone,
    given: &str,
) -> Violation {
    match unknown_keys::closest_word(known.clone(), given) {
        Some(meant) => Violation::from(refusal).suggesting(meant),
        None => Violation::from(refusal).listing(known),
    }
}

/// The hooks that one item of a list names.
pub(super) fn hooks(item: &str) -> Result<Vec<InvoicingHook>, Violation> {
    if item == ALL { Ok(every_hook().collect()) } else { pair(item).map(|hook| vec![hook]) }
}

/// The hook that a pair such as `Customer:Created` names.
///
/// # Errors
/// It is not a pair, or the provider offers no such hook.
pub fn hook(item: &str) -> Result<InvoicingHook, String> {
    pair(item).map_err(|detail| detail.to_string())
}

fn pair(item: &str) -> Result<InvoicingHook, Violation> {
    let (entity, action) = item.split_once(':').ok_or("it is not a pair such as Customer:Created")?;
    let (entity, action) = (entity.trim(), action.trim());
    let entities = InvoicingEntity::all().map(InvoicingEntity::provider_name);
    let unknown = |_| unknown_name("it names no invoicing entity", entities, entity);
    let entity: InvoicingEntity = entity.parse().map_err(unknown)?;
    let actions = InvoicingAction::ALL.iter().map(|action| action.provider_name());
    let unknown = |_| unknown_name("it names no invoicing action", actions, action);
    let action: InvoicingAction = action.parse().map_err(unknown)?;
    if entity.allows(action) {
        Ok(InvoicingHook { entity, action })
    } else {
        let offered = entity.actions().iter().map(|action| action.provider_name());
        Err(Violation::from("its entity does not offer that action").listing(offered))
    }
}

/// A number above one, or `off`.
pub(crate) const FACTOR: Rule =
    Rule::custom("a number of at least 1.5, or off", |text| factor(text).map(drop))
        .remedy("write for example 3");

/// Parses a factor; `None` for `off`.
pub(super) fn factor(text: &str) -> Result<Option<f64>, Violation> {
    if text == "off" {
        return Ok(None);
    }
    match text.parse::<f64>() {
        Ok(factor) if (1.5..=1e6).contains(&factor) => Ok(Some(factor)),
        _ => Err("it is neither".into()),
    }
}

/// The event kinds that one item of a list names.
pub(super) fn event_kinds(item: &str) -> Result<Vec<&'static str>, Violation> {
    if item == ALL {
        return Ok(EVENT_KINDS.to_vec());
    }
    let kinds = || EVENT_KINDS.iter().copied();
    kinds().find(|kind| *kind == item).map(|kind| vec![kind]).ok_or_else(|| {
        let unknown = Violation::from("it is none of them");
        match unknown_keys::closest_word(kinds(), item) {
            Some(meant) => unknown.suggesting(meant),
            None => unknown,
        }
    })
}

fn every_hook() -> impl Iterator<Item = InvoicingHook> {
    InvoicingEntity::all()
        .flat_map(|entity| entity.actions().iter().map(move |&action| InvoicingHook { entity, action }))
}

#[cfg(test)]
mod tests {
    use model::InvoicingAction;

    use super::*;

    #[test]
    fn all_means_every_resource_and_every_hook_the_provider_offers() {
        assert_eq!(resources("all").unwrap().len(), 19);
        // Sixteen entities with three actions, two with Updated alone.
        assert_eq!(hooks("all").unwrap().len(), 16 * 3 + 2);
    }

    #[test]
    fn hooks_are_pairs_the_provider_offers() {
        let customer = InvoicingHook { entity: InvoicingEntity::Customer, action: InvoicingAction::Created };

        assert_eq!(hooks("Customer:Created"), Ok(vec![customer]));
        for wrong in ["Customer", "Customer:Removed", "Costumer:Created", "CompanyData:Deleted", ""] {
            assert!(hooks(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_wrong_name_gets_a_suggestion_and_is_not_repeated() {
        let refusal = resources("zebra").unwrap_err().to_string();
        assert!(refusal.starts_with("it is not an accounting resource; known are "), "{refusal}");
        assert!(refusal.contains("accounts") && !refusal.contains("zebra"), "{refusal}");

        let table = [
            ("Costumer:Created", "it names no invoicing entity; did you mean Customer?"),
            ("Customer:Create", "it names no invoicing action; did you mean Created?"),
            ("CUSTOMER:Created", "it names no invoicing entity; did you mean Customer?"),
            ("CompanyData:Created", "its entity does not offer that action; known are Updated"),
            ("Customer", "it is not a pair such as Customer:Created"),
            ("Zebra:Created", "it names no invoicing entity; known are "),
        ];
        for (item, expected) in table {
            let refusal = hooks(item).unwrap_err().to_string();
            assert!(refusal.starts_with(expected), "{item}: {refusal}");
        }
        assert_eq!(
            event_kinds("Create").unwrap_err().to_string(),
            "it is none of them; did you mean Created?"
        );
        assert_eq!(event_kinds("Exploded").unwrap_err().to_string(), "it is none of them");
    }
}
