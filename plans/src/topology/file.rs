//! Topologies as text: TOML, every key known.

use super::{Topology, TopologyError};

impl Topology {
    /// Reads a topology's text. `source_name` is named in errors: the file's path.
    ///
    /// # Errors
    /// A key that is unknown or missing, a name that leads nowhere, a figure that cannot be: with
    /// the file, the key and the remedy.
    pub fn parse(text: &str, source_name: &str) -> Result<Topology, TopologyError> {
        let topology: Topology = toml::from_str(text).map_err(|error| TopologyError::Text {
            source_name: source_name.to_string(),
            detail: error.to_string().trim_end().to_string(),
        })?;
        topology.check().map_err(|error| error.of(source_name))?;
        Ok(topology)
    }

    /// The text that [`Topology::parse`] reads back.
    ///
    /// # Errors
    /// A figure that TOML has no form for.
    pub fn to_text(&self) -> Result<String, TopologyError> {
        toml::to_string(self).map_err(|error| TopologyError::Text {
            source_name: self.name.clone(),
            detail: error.to_string(),
        })
    }
}
