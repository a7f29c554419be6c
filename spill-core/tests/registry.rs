//! What a registry finds, and what it says of what it does not have.

mod support;

use std::sync::Arc;

use spill_core::{Component, Compressor, LookupError, Options, Registry, Tag};
use support::{Copies, NoFiles, registry};

#[tokio::test]
async fn the_core_opens_stores_in_memory_and_refuses_options() {
    let factory = Registry::new().store("memory").unwrap();
    let url = "memory:".parse().unwrap();
    assert_eq!(factory.open(&url, Options::new()).await.unwrap().info().name, "memory:");
    let error = factory.open(&url, Options::new().with("region", "eu")).await.unwrap_err();
    assert!(error.to_string().contains("unknown option `region`"), "{error}");
}

#[test]
fn a_later_component_takes_the_place_of_an_earlier_one() {
    let mine = |_: Option<&str>| Ok(Arc::new(Copies("mine", Tag::LZ4)) as Arc<dyn Compressor>);
    let both = registry().with_compressor("lz4", mine).with_store("memory", Arc::new(NoFiles));
    assert_eq!(both.compressor("lz4", Some("any")).unwrap().name(), "mine");
    assert_eq!(format!("{:?}", both.store("memory").unwrap()), "NoFiles");
    assert_eq!(registry().compressor("lz4", None).unwrap().name(), "lz4", "others are not affected");
}

#[test]
fn every_compressor_is_found_by_its_tag() {
    let by_tag = registry().compressors().unwrap();
    let names: Vec<_> = by_tag.iter().map(|(tag, compressor)| (*tag, compressor.name())).collect();
    assert_eq!(names, [(Tag::LZ4, "lz4"), (Tag::ZSTD, "zstd")]);
    let picky = registry().with_compressor("picky", |_| Err("say how".to_owned()));
    let refused = picky.compressors().unwrap_err();
    assert_eq!(refused.to_string(), "the compressor `picky`: say how");
}

#[test]
fn what_is_missing_is_named_with_what_there_is() {
    let registry = registry();
    let error = registry.policy("lruu").unwrap_err();
    assert_eq!(
        error.to_string(),
        "unknown victim policy `lruu`; there are: clock, fifo, lru, s3-fifo, sieve"
    );
    let LookupError::Unknown { kind, feature, .. } = registry.compressor("snappy", None).unwrap_err() else {
        panic!("it is not there");
    };
    assert_eq!((kind, feature.as_deref()), (Component::Compressor, Some("snappy")));
    let error = registry.compressor("zstd", Some("99")).unwrap_err();
    assert_eq!(error.to_string(), "the compressor `zstd` refuses `99`: levels are 1 to 22");
    assert_eq!(registry.policy("lru").unwrap().name(), "lru");
}

#[test]
fn what_is_on_a_file_system_is_known() {
    let registry = registry().with_file_system("nfs");
    assert_eq!(["file", "nfs", "memory"].map(|scheme| registry.is_file_system(scheme)), [true, true, false]);
}
