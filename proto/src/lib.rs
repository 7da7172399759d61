//! The wire: what gateways ask of nodes ([`cluster`]) and what nodes say to each other ([`raft`]).
//!
//! Generated from `proto/*.proto`, which are the documentation. This crate knows no rule and no type of the domain; commands
//! and queries pass through it as bytes.

/// Gateway to node: propose, read, watch, status.
pub mod cluster {
    tonic::include_proto!("quorate.cluster.v1");
}

/// An outside resource to gateway: is a fencing token good?
pub mod fence {
    tonic::include_proto!("quorate.fence.v1");
}

/// Node to node: append, vote, snapshots, read index.
pub mod raft {
    tonic::include_proto!("quorate.raft.v1");
}

/// The largest request a node accepts, in bytes; larger ones are refused before they are read.
pub const REQUEST_BYTES_MAX: usize = 1 << 20;

/// The secret that the processes of one cluster show to each other, so that no other local process can speak for a caller.
pub mod secret {
    use tonic::metadata::{Ascii, MetadataValue};
    use tonic::service::Interceptor;
    use tonic::{Request, Status};

    /// The metadata entry that carries it.
    pub const HEADER: &str = "x-quorate-cluster-secret";

    /// Client side: shows the secret on every call.
    #[derive(Clone)]
    pub struct Show(Option<MetadataValue<Ascii>>);

    impl Show {
        /// `None` shows nothing. Fails for a secret that is not visible ASCII.
        pub fn new(secret: Option<&str>) -> Result<Self, tonic::metadata::errors::InvalidMetadataValue> {
            Ok(Self(secret.map(str::parse).transpose()?))
        }
    }

    impl Interceptor for Show {
        fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
            if let Some(secret) = &self.0 {
                request.metadata_mut().insert(HEADER, secret.clone());
            }
            Ok(request)
        }
    }

    /// Server side: refuses a call without it.
    #[derive(Clone)]
    pub struct Want(Option<String>);

    impl Want {
        /// `None` wants nothing.
        pub fn new(secret: Option<String>) -> Self {
            Self(secret)
        }
    }

    impl Interceptor for Want {
        fn call(&mut self, request: Request<()>) -> Result<Request<()>, Status> {
            let Some(wanted) = &self.0 else { return Ok(request) };
            let shown = request.metadata().get(HEADER).map(|value| value.as_bytes()).unwrap_or_default();
            // Every byte is looked at, so that the time taken does not tell how much of a guess was right.
            let differs = shown.len() != wanted.len() || shown.iter().zip(wanted.as_bytes()).fold(0, |all, (a, b)| all | (a ^ b)) != 0;
            if differs {
                return Err(Status::unauthenticated("the cluster secret is missing or wrong: set `cluster_secret` to the cluster's"));
            }
            Ok(request)
        }
    }
}
