//! Runs in S3, Google Cloud Storage and Azure.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::TryStreamExt;
use object_store::path::Path as ObjectPath;
use object_store::{ObjectStore, ObjectStoreExt};
use tokio::runtime::Runtime;
use url::Url;

use super::StoreFailure;

/// Variables of the environment that say how a store is reached.
const SETTINGS: [&str; 4] = ["aws_", "google_", "azure_", "object_store_"];

/// The objects under one prefix of a bucket.
pub(super) struct Objects {
    store: Arc<dyn ObjectStore>,
    prefix: ObjectPath,
    runtime: Runtime,
}

impl Objects {
    /// Opens an address such as `s3://bucket/run`; fails with the reason.
    pub(super) fn open(address: &str) -> Result<Self, String> {
        // Fails if there is one already, which then serves as well.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let url = Url::parse(address).map_err(|error| error.to_string())?;
        let settings = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .map(|(name, value)| (name.to_ascii_lowercase(), value))
            .filter(|(name, _)| SETTINGS.iter().any(|start| name.starts_with(start)));
        let (store, prefix) =
            object_store::parse_url_opts(&url, settings).map_err(|error| error.to_string())?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        Ok(Self { store: Arc::from(store), prefix, runtime })
    }

    pub(super) fn get(&self, name: &str) -> Result<Option<Vec<u8>>, StoreFailure> {
        let path = self.path(name);
        match self.runtime.block_on(async { self.store.get(&path).await?.bytes().await }) {
            Ok(bytes) => Ok(Some(bytes.to_vec())),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) fn has(&self, name: &str) -> Result<bool, StoreFailure> {
        match self.runtime.block_on(self.store.head(&self.path(name))) {
            Ok(found) => Ok(found.size > 0),
            Err(object_store::Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) fn put(&self, name: &str, bytes: Vec<u8>) -> Result<(), StoreFailure> {
        let path = self.path(name);
        self.runtime.block_on(self.store.put(&path, bytes.into()))?;
        Ok(())
    }

    pub(super) fn list(&self, folder: &str) -> Result<BTreeSet<String>, StoreFailure> {
        let path = self.path(folder);
        let found = self.runtime.block_on(self.store.list(Some(&path)).try_collect::<Vec<_>>())?;
        let full = found.iter().filter(|object| object.size > 0);
        Ok(full.filter_map(|object| object.location.filename().map(ToOwned::to_owned)).collect())
    }

    fn path(&self, name: &str) -> ObjectPath {
        name.split('/').fold(self.prefix.clone(), |path, part| path.join(part))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_of_every_provider_open_with_transport_security() {
        let account = "abfss://container@account.dfs.core.windows.net/run";
        for address in ["s3://bucket/run", "gs://bucket/run", account] {
            assert!(Objects::open(address).is_ok(), "{address}");
        }
    }
}
