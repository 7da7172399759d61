//! A gateway in front of an in-memory cluster, for trying clients without nodes: `cargo run -p quorate-gateway --example
//! fake_cluster -- 127.0.0.1:7400`. Tokens: `token-a`, `token-b`, `token-operator`, `token-other`.

#[path = "../tests/fake/mod.rs"]
#[expect(dead_code, reason = "the faults are for the tests")]
mod fake;

use quorate_gateway::{Config, Gateway};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let fake = fake::Fake::start(3).await;
    let config = Config {
        listen: std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:7400".into()),
        nodes: fake.addresses(),
        session_key: "07".repeat(32),
        receipt_keys: vec![fake.receipt_key_hex()],
        ..Config::default()
    };
    let gateway = Gateway::bind(config).await?;
    println!("http://{}/mcp", gateway.address());
    gateway.serve(std::future::pending()).await?;
    Ok(())
}
