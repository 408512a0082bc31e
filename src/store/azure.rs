//! Azure's listings, made as those of other stores are. `object_store` passes their tags on as they come, without the quotes that the tags of
//! answers have, so that no object would be the version that was listed. It also leaves the empty blob `t/empty/`, which marks a directory,
//! out of the listing of that directory.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use async_trait::async_trait;
use futures::stream::{self, BoxStream, StreamExt, TryStreamExt};
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::path::{DELIMITER, Path};
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMultipartOptions,
    PutOptions, PutPayload, PutResult, Result,
};

use super::stamp::is_weak;

/// See the module.
#[derive(Debug)]
pub(super) struct Azure<T> {
    store: Arc<T>,
}

impl<T> Azure<T> {
    pub(super) fn new(store: Arc<T>) -> Self {
        Self { store }
    }
}

/// Returns true if there are names that begin with that of `directory` and a slash. What is asked for begins with the name alone: a listing of
/// `directory` itself leaves its mark out, and that of the directory above may have any number of other names.
async fn is_directory(store: &impl PaginatedListStore, directory: &Path) -> Result<bool> {
    let below = format!("{directory}{DELIMITER}");
    let mut page_token = None;
    loop {
        let delimiter = Some(DELIMITER.into());
        let options = PaginatedListOptions { delimiter, page_token, ..PaginatedListOptions::default() };
        let page = store.list_paginated(Some(directory.as_ref()), options).await?;
        let found = page.result;
        if found.common_prefixes.contains(directory) {
            return Ok(true);
        }
        // Names come in order.
        let names = found.common_prefixes.iter().chain(found.objects.iter().map(|meta| &meta.location));
        let is_past = names.into_iter().any(|name| *name.as_ref() > *below);
        page_token = page.page_token.filter(|_| !is_past);
        if page_token.is_none() {
            return Ok(false);
        }
    }
}

/// `meta` of a listing, with quotes around its tag.
fn quoted(meta: ObjectMeta) -> ObjectMeta {
    let quote = |tag: String| if tag.starts_with('"') || is_weak(&tag) { tag } else { format!("\"{tag}\"") };
    ObjectMeta { e_tag: meta.e_tag.map(quote), ..meta }
}

/// The directory that is listed; none for all of the store.
fn named(prefix: Option<&Path>) -> Option<&Path> {
    prefix.filter(|prefix| !prefix.as_ref().is_empty())
}

/// The empty object that marks `directory`.
fn mark(directory: &Path) -> ObjectMeta {
    let last_modified = SystemTime::UNIX_EPOCH.into();
    ObjectMeta { location: directory.clone(), last_modified, size: 0, e_tag: None, version: None }
}

impl<T: ObjectStore> fmt::Display for Azure<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.store)
    }
}

#[async_trait]
impl<T: ObjectStore + PaginatedListStore> ObjectStore for Azure<T> {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.store.put_opts(location, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.store.put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.store.get_opts(location, options).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.store.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let mut found = self.store.list(prefix).map_ok(quoted).boxed();
        let Some(directory) = named(prefix).cloned() else { return found };
        let store = Arc::clone(&self.store);
        let first = async move {
            match found.next().await {
                Some(first) => stream::iter([first]).chain(found).boxed(),
                None => match is_directory(&*store, &directory).await {
                    Ok(is_directory) => stream::iter(is_directory.then(|| Ok(mark(&directory)))).boxed(),
                    Err(error) => stream::iter([Err(error)]).boxed(),
                },
            }
        };
        stream::once(first).flatten().boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let found = self.store.list_with_delimiter(prefix).await?;
        let mut objects: Vec<_> = found.objects.into_iter().map(quoted).collect();
        if let Some(directory) = named(prefix)
            && objects.is_empty()
            && found.common_prefixes.is_empty()
            && is_directory(&*self.store, directory).await?
        {
            objects.push(mark(directory));
        }
        Ok(ListResult { objects, ..found })
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.store.copy_opts(from, to, options).await
    }
}

#[cfg(test)]
mod tests {
    use object_store::ObjectStoreExt;
    use object_store::list::PaginatedListResult;
    use object_store::memory::InMemory;

    use super::*;
    use crate::store::stamp::Stamp;

    /// A store in memory that lists as `object_store` has Azure's lists: tags without quotes, and no mark in its own directory. The names of
    /// `marks` end with a slash, which the store in memory cannot keep.
    #[derive(Debug, Default)]
    struct Listing {
        store: InMemory,
        marks: Vec<&'static str>,
    }

    fn bare(meta: ObjectMeta) -> ObjectMeta {
        ObjectMeta { e_tag: meta.e_tag.map(|tag| tag.trim_matches('"').to_owned()), ..meta }
    }

    impl fmt::Display for Listing {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("listing")
        }
    }

    #[async_trait]
    impl PaginatedListStore for Listing {
        /// One name in each page.
        async fn list_paginated(
            &self,
            prefix: Option<&str>,
            options: PaginatedListOptions,
        ) -> Result<PaginatedListResult> {
            assert_eq!(options.delimiter.as_deref(), Some("/"));
            let prefix = prefix.unwrap();
            let mut names: Vec<String> = self.marks.iter().map(|&mark| mark.to_owned()).collect();
            let objects: Vec<ObjectMeta> = self.store.list(None).try_collect().await?;
            names.extend(objects.iter().map(|meta| meta.location.to_string()));
            names.retain(|name| name.starts_with(prefix));
            names.sort();
            let at = options.page_token.map_or(0, |token| token.parse::<usize>().unwrap());
            let below = names.get(at).and_then(|name| name[prefix.len()..].find('/').map(|end| prefix.len() + end));
            let common_prefixes = below.map(|end| Path::from(&names[at][..end])).into_iter().collect();
            let page_token = (at + 1 < names.len()).then(|| (at + 1).to_string());
            let result = ListResult { common_prefixes, objects: Vec::new(), extensions: Default::default() };
            Ok(PaginatedListResult { result, page_token })
        }
    }

    #[async_trait]
    impl ObjectStore for Listing {
        async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
            self.store.put_opts(location, payload, options).await
        }

        async fn put_multipart_opts(
            &self,
            location: &Path,
            options: PutMultipartOptions,
        ) -> Result<Box<dyn MultipartUpload>> {
            self.store.put_multipart_opts(location, options).await
        }

        async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
            self.store.get_opts(location, options).await
        }

        fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
            self.store.delete_stream(locations)
        }

        fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
            self.store.list(prefix).map_ok(bare).boxed()
        }

        async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
            let found = self.store.list_with_delimiter(prefix).await?;
            Ok(ListResult { objects: found.objects.into_iter().map(bare).collect(), ..found })
        }

        async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
            self.store.copy_opts(from, to, options).await
        }
    }

    #[tokio::test]
    async fn the_version_of_a_listing_is_that_of_an_answer() {
        let store = Azure::new(Arc::new(Listing::default()));
        let path = Path::from("t/a");
        store.put(&path, PutPayload::from_static(b"a")).await.unwrap();
        let answer = Stamp::of(&store.head(&path).await.unwrap());
        let deep: Vec<ObjectMeta> = store.list(None).try_collect().await.unwrap();
        let flat = store.list_with_delimiter(Some(&Path::from("t"))).await.unwrap().objects;
        for listed in [deep, flat] {
            assert_eq!(listed.iter().map(Stamp::of).collect::<Vec<_>>(), std::slice::from_ref(&answer));
        }
        let options = GetOptions { if_match: answer.condition(), ..GetOptions::default() };
        assert!(store.get_opts(&path, options).await.is_ok());
        let tagged = |tag: &str| quoted(ObjectMeta { e_tag: Some(tag.to_owned()), ..mark(&path) }).e_tag.unwrap();
        assert_eq!([tagged("0x1"), tagged("\"0x1\""), tagged("W/\"1\"")], ["\"0x1\"", "\"0x1\"", "W/\"1\""]);
    }

    #[tokio::test]
    async fn a_mark_is_in_the_listing_of_the_directory_that_has_nothing_else() {
        let store = Azure::new(Arc::new(Listing { marks: vec!["t/", "t/empty/"], ..Listing::default() }));
        for name in ["t/a", "t/empty-1", "t/empty.1"] {
            store.put(&Path::from(name), PutPayload::from_static(b"a")).await.unwrap();
        }
        let listed = async |path: &str| {
            let path = Path::from(path);
            let found = store.list_with_delimiter(Some(&path)).await.unwrap().objects;
            let deep: Vec<ObjectMeta> = store.list(Some(&path)).try_collect().await.unwrap();
            let named = |found: Vec<ObjectMeta>| -> Vec<_> {
                found.into_iter().map(|meta| (meta.location.to_string(), meta.size)).collect()
            };
            let found = named(found);
            assert_eq!(found, named(deep));
            found
        };
        assert_eq!(listed("t/empty").await, [("t/empty".to_owned(), 0)]);
        assert_eq!(listed("t").await.len(), 3, "where there are names, nothing more is asked");
        for none in ["t/em", "t/a", "t/none"] {
            assert!(listed(none).await.is_empty(), "{none}");
        }
    }
}
