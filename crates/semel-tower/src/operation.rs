//! The name of what is done, and of the service that does it.

use std::fmt;
use std::sync::Arc;

use http::request::Parts;
use semel::Service;

pub(crate) type OperationName = dyn Fn(&Parts) -> String + Send + Sync;

/// Names what a request does, as the store has it.
#[derive(Clone)]
pub(crate) struct OperationRule {
    service: Service,
    name: Name,
}

#[derive(Clone)]
enum Name {
    Fixed { name: Arc<str>, stored: Arc<str> },
    By(Arc<OperationName>),
}

impl OperationRule {
    pub(crate) fn set_service(&mut self, service: Service) {
        self.service = service;
        if let Name::Fixed { name, .. } = &self.name {
            self.set_name(Arc::clone(name));
        }
    }

    pub(crate) fn set_name(&mut self, name: Arc<str>) {
        let stored = self.service.operation(&name).into();
        self.name = Name::Fixed { name, stored };
    }

    pub(crate) fn set_function(&mut self, name: Arc<OperationName>) {
        self.name = Name::By(name);
    }

    /// The name where all requests have the same.
    pub(crate) fn fixed(&self) -> Option<&str> {
        match &self.name {
            Name::Fixed { stored, .. } => Some(stored),
            Name::By(_) => None,
        }
    }

    pub(crate) fn of(&self, parts: &Parts) -> Arc<str> {
        match &self.name {
            Name::Fixed { stored, .. } => Arc::clone(stored),
            Name::By(name) => self.service.operation(&name(parts)).into(),
        }
    }
}

impl Default for OperationRule {
    fn default() -> Self {
        let name: Arc<str> = "http".into();
        Self {
            service: Service::default(),
            name: Name::Fixed {
                stored: Arc::clone(&name),
                name,
            },
        }
    }
}

impl fmt::Debug for OperationRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match &self.name {
            Name::Fixed { name, .. } => name,
            Name::By(_) => "function",
        };
        f.debug_struct("OperationRule")
            .field("service", &self.service.name())
            .field("name", &name)
            .finish()
    }
}
