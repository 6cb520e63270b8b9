//! Lists of resources, hooks and event kinds: names of the provider's own things, or `all`.

use crate::{
    config::{key::Rule, unknown},
    model::{AccountingResource, Error, InvoicingAction, InvoicingEntity, InvoicingHook},
};

/// Kinds of accounting events that can be subscribed to, by the ending of their names.
pub(super) const EVENT_KINDS: &[&str] = &["Created", "Updated", "Deleted", "Disabled", "ErrorOccurred"];

const ALL: &str = "all";

pub(crate) const RESOURCES: Rule = Rule::Custom {
    says: "names of accounting resources, or all",
    remedy: "write for example customers,accounts",
    check: |text| resources(text).map(drop),
};

pub(crate) const HOOKS: Rule = Rule::Custom {
    says: "entity:action pairs of the invoicing API, or all",
    remedy: "write for example Customer:Created,SaleInvoice:Updated",
    check: |text| hooks(text).map(drop),
};

pub(crate) const EVENTS: Rule = Rule::Custom {
    says: "Created, Updated, Deleted, Disabled, ErrorOccurred or all",
    remedy: "write for example Created,Updated",
    check: |text| event_kinds(text).map(drop),
};

/// What one item of a list of resources stands for.
pub(super) fn resources(item: &str) -> Result<Vec<AccountingResource>, String> {
    if item == ALL {
        return Ok(AccountingResource::all().collect());
    }
    let known = AccountingResource::all().map(AccountingResource::name);
    item.parse().map(|resource| vec![resource]).map_err(|error| suggesting(&error, known, item))
}

/// What is wrong with a name, and the one that was probably meant.
fn suggesting<'a>(error: &Error, known: impl Iterator<Item = &'a str>, given: &str) -> String {
    match unknown::meant(known, given) {
        Some(meant) => format!("did you mean {meant}? {error}"),
        None => error.to_string(),
    }
}

/// What one item of a list of hooks stands for.
pub(super) fn hooks(item: &str) -> Result<Vec<InvoicingHook>, String> {
    if item == ALL { Ok(every_hook().collect()) } else { hook(item).map(|hook| vec![hook]) }
}

/// The hook that a pair such as `Customer:Created` names.
///
/// # Errors
/// It is no pair, or the provider offers no such hook.
pub fn hook(item: &str) -> Result<InvoicingHook, String> {
    let (entity, action) =
        item.split_once(':').ok_or_else(|| format!("`{item}` is not a pair such as Customer:Created"))?;
    let (entity, action) = (entity.trim(), action.trim());
    let entities = InvoicingEntity::all().map(InvoicingEntity::provider_name);
    let entity: InvoicingEntity = entity.parse().map_err(|error| suggesting(&error, entities, entity))?;
    let actions = InvoicingAction::ALL.iter().map(|action| action.provider_name());
    let action: InvoicingAction = action.parse().map_err(|error| suggesting(&error, actions, action))?;
    if entity.allows(action) {
        Ok(InvoicingHook { entity, action })
    } else {
        let offered: Vec<_> = entity.actions().iter().map(|action| action.provider_name()).collect();
        Err(format!("{} only offers {}", entity.provider_name(), offered.join(", ")))
    }
}

/// A number above one, or `off`.
pub(crate) const FACTOR: Rule = Rule::Custom {
    says: "a number of at least 1.5, or off",
    remedy: "write for example 3",
    check: |text| factor(text).map(drop),
};

/// What a factor stands for: none for `off`.
pub(super) fn factor(text: &str) -> Result<Option<f64>, String> {
    if text == "off" {
        return Ok(None);
    }
    match text.parse::<f64>() {
        Ok(factor) if (1.5..=1e6).contains(&factor) => Ok(Some(factor)),
        _ => Err(format!("`{text}` is neither")),
    }
}

/// What one item of a list of event kinds stands for.
pub(super) fn event_kinds(item: &str) -> Result<Vec<&'static str>, String> {
    if item == ALL {
        return Ok(EVENT_KINDS.to_vec());
    }
    let kind = EVENT_KINDS.iter().find(|kind| **kind == item);
    let unknown = || match unknown::meant(EVENT_KINDS.iter().copied(), item) {
        Some(meant) => format!("`{item}` is none of them; did you mean {meant}?"),
        None => format!("`{item}` is none of them"),
    };
    kind.map(|kind| vec![*kind]).ok_or_else(unknown)
}

fn every_hook() -> impl Iterator<Item = InvoicingHook> {
    InvoicingEntity::all()
        .flat_map(|entity| entity.actions().iter().map(move |&action| InvoicingHook { entity, action }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::InvoicingAction;

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
    fn a_wrong_name_is_told_which_there_are_and_which_was_probably_meant() {
        let told = resources("costumers").unwrap_err();
        assert!(
            told.starts_with("did you mean customers? unknown accounting resource `costumers`"),
            "{told}"
        );
        assert!(told.contains("accounts"), "{told}");

        let table = [
            ("Costumer:Created", "did you mean Customer? unknown invoicing entity `Costumer`"),
            ("Customer:Create", "did you mean Created? unknown invoicing action `Create`"),
            ("CUSTOMER:Created", "did you mean Customer? unknown invoicing entity `CUSTOMER`"),
            ("CompanyData:Created", "CompanyData only offers Updated"),
            ("Customer", "`Customer` is not a pair such as Customer:Created"),
            ("Zebra:Created", "unknown invoicing entity `Zebra`"),
        ];
        for (item, expected) in table {
            let told = hooks(item).unwrap_err();
            assert!(told.starts_with(expected), "{item}: {told}");
        }
        assert_eq!(event_kinds("Create").unwrap_err(), "`Create` is none of them; did you mean Created?");
        assert_eq!(event_kinds("Exploded").unwrap_err(), "`Exploded` is none of them");
    }
}
