//! Lists of resources, hooks and event kinds: names of the provider's own things, or `all`.

use crate::{
    config::key::Rule,
    model::{AccountingResource, InvoicingEntity, InvoicingHook},
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
    item.parse().map(|resource| vec![resource]).map_err(|error: crate::model::Error| error.to_string())
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
    let entity: InvoicingEntity =
        entity.trim().parse().map_err(|error: crate::model::Error| error.to_string())?;
    let action = action.trim().parse().map_err(|error: crate::model::Error| error.to_string())?;
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
    kind.map(|kind| vec![*kind]).ok_or_else(|| format!("`{item}` is none of them"))
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
    fn a_wrong_resource_is_told_which_there_are() {
        let told = resources("costumers").unwrap_err();

        assert!(told.contains("costumers") && told.contains("customers"), "{told}");
    }
}
