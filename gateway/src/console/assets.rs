//! Style, script and icon: files of this program, named after their content, so that browsers keep them for good.

use std::sync::LazyLock;

use axum::body::Body;
use axum::extract::Path;
use axum::http::{HeaderValue, Response, StatusCode, header};

use crate::edge;

/// One file.
pub struct Asset {
    /// Where it is served.
    pub path: String,
    kind: &'static str,
    text: &'static str,
}

impl Asset {
    fn new(stem: &str, end: &str, kind: &'static str, text: &'static str) -> Self {
        let hash = blake3::hash(text.as_bytes()).to_hex();
        Self { path: format!("/console/assets/{stem}-{}.{end}", &hash[..16]), kind, text }
    }
}

pub static STYLE: LazyLock<Asset> =
    LazyLock::new(|| Asset::new("console", "css", "text/css; charset=utf-8", include_str!("assets/console.css")));
pub static SCRIPT: LazyLock<Asset> =
    LazyLock::new(|| Asset::new("console", "js", "text/javascript; charset=utf-8", include_str!("assets/console.js")));
pub static ICON: LazyLock<Asset> = LazyLock::new(|| Asset::new("icon", "svg", "image/svg+xml", include_str!("assets/icon.svg")));

pub async fn serve(Path(file): Path<String>) -> Response<Body> {
    let all = [&*STYLE, &*SCRIPT, &*ICON];
    let Some(asset) = all.into_iter().find(|asset| asset.path.rsplit('/').next() == Some(&file)) else {
        return edge::with_type(StatusCode::NOT_FOUND, "text/plain; charset=utf-8", "there is no such file\n".into());
    };
    let mut response = edge::with_type(StatusCode::OK, asset.kind, asset.text.into());
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("public, max-age=31536000, immutable"));
    response
}
