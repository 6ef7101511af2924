//! HTTP functions: who sent a request, as API Gateway authorised it.
//!
//! [`lambda_http::run`] serves any tower service, so an axum router with `semel-tower`'s layer runs
//! as it is, with no adapter. What differs on Lambda is where the principal stands: API Gateway has
//! authorised the request before, and says for whom.
//!
//! ```no_run
//! use axum::{Router, routing::post};
//! use semel::memory::MemoryStore;
//! use semel_tower::IdempotencyLayer;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), semel_lambda::BoxError> {
//! let layer = IdempotencyLayer::new(MemoryStore::default())
//!     .with_principal_by(semel_lambda::http::principal)
//!     .with_principal_required(true);
//! let app: Router = Router::new()
//!     .route("/orders", post(|| async { "placed, once per Idempotency-Key" }))
//!     .layer(layer);
//! lambda_http::run(app).await
//! # }
//! ```
//!
//! (A store in memory is one per sandbox: on Lambda use one on a server.) Put the layer inside the
//! router with [`Router::layer`](https://docs.rs/axum/0.8/axum/struct.Router.html#method.layer). Around
//! it, it would see `lambda_http::Body`, which cannot be made of the bytes that were read:
//! `ServiceBuilder::map_request(|request| request.map(axum::body::Body::new))` goes before it then.

use http::request::Parts;
use lambda_http::RequestExt as _;
use lambda_http::aws_lambda_events::apigw::{
    ApiGatewayProxyRequestContext, ApiGatewayRequestAuthorizer,
};
use lambda_http::request::RequestContext;
use semel::Scope;
use serde_json::Value;

/// Whom API Gateway authorised, for
/// [`IdempotencyLayer::with_principal_by`](semel_tower::IdempotencyLayer::with_principal_by).
///
/// | authorised by | scope |
/// |---|---|
/// | a JWT (HTTP API), a user pool of Cognito (REST API) | its issuer and subject |
/// | IAM with credentials of an identity pool of Cognito | the id of the identity in the pool |
/// | IAM otherwise | the id of the user, or of the role and its session |
/// | a function that says `principalId` | that |
/// | a key of the API, and nothing else (REST API) | its id |
///
/// A session of a role that somebody assumes has the name that they give it: `AROA…:NAME`. **Where
/// each call of STS makes up a new name, the client is another principal after each refresh of its
/// credentials, and a retry runs again.** Give sessions the name of the client (`RoleSessionName`,
/// which `sts:RoleSessionName` in the role's trust policy can demand), or scope by something else.
///
/// `None` where nobody was: refuse those with
/// [`with_principal_required`](semel_tower::IdempotencyLayer::with_principal_required), or they share
/// one scope. Behind a load balancer there is always nobody.
pub fn principal(parts: &Parts) -> Option<Scope> {
    match parts.request_context_ref()? {
        RequestContext::ApiGatewayV2(context) => of_http_api(context.authorizer.as_ref()?),
        RequestContext::ApiGatewayV1(context) => of_rest_api(context),
        _ => None,
    }
}

fn of_http_api(authorizer: &ApiGatewayRequestAuthorizer) -> Option<Scope> {
    if let Some(jwt) = &authorizer.jwt {
        let claim = |name| jwt.claims.get(name).map(String::as_str);
        return subject(claim("iss"), claim("sub"));
    }
    if let Some(iam) = &authorizer.iam {
        let cognito = iam.cognito_identity.as_ref();
        let identity = cognito.and_then(|cognito| cognito.identity_id.as_deref());
        return of_iam(identity, iam.user_id.as_deref());
    }
    named("authorizer", text(authorizer.fields.get("principalId")))
}

fn of_rest_api(context: &ApiGatewayProxyRequestContext) -> Option<Scope> {
    let fields = &context.authorizer.fields;
    if let Some(claims) = fields.get("claims") {
        return subject(text(claims.get("iss")), text(claims.get("sub")));
    }
    let identity = &context.identity;
    named("authorizer", text(fields.get("principalId")))
        .or_else(|| {
            of_iam(
                identity.cognito_identity_id.as_deref(),
                identity.user.as_deref(),
            )
        })
        .or_else(|| named("api-key", identity.api_key_id.as_deref()))
}

/// How Cognito calls the session of everybody who has credentials of an identity pool.
const OF_THE_POOL: &str = ":CognitoIdentityCredentials";

// The identity comes first: the user is the same for all who have a role by an identity pool.
fn of_iam(identity: Option<&str>, user: Option<&str>) -> Option<Scope> {
    named("cognito", identity)
        .or_else(|| named("iam", user.filter(|user| !user.ends_with(OF_THE_POOL))))
}

fn text(value: Option<&Value>) -> Option<&str> {
    value?.as_str()
}

// A subject is unique within its issuer only.
fn subject(issuer: Option<&str>, subject: Option<&str>) -> Option<Scope> {
    let subject = subject.filter(|subject| !subject.is_empty())?;
    Some(Scope::new(["jwt", issuer.unwrap_or_default(), subject]))
}

fn named(by: &str, name: Option<&str>) -> Option<Scope> {
    let name = name.filter(|name| !name.is_empty())?;
    Some(Scope::new([by, name]))
}

#[cfg(test)]
mod tests {
    use lambda_http::aws_lambda_events::apigw::ApiGatewayV2httpRequestContext;
    use serde::de::DeserializeOwned;
    use serde_json::json;

    use super::*;

    fn with<C: DeserializeOwned>(of: fn(C) -> RequestContext, context: Value) -> Option<Scope> {
        let context = of(serde_json::from_value(context).unwrap());
        let request = http::Request::new(()).with_request_context(context);
        principal(&request.into_parts().0)
    }

    fn http_api(authorizer: &Value) -> Option<Scope> {
        let context = json!({"http": {"method": "POST"}, "authorizer": authorizer});
        with::<ApiGatewayV2httpRequestContext>(RequestContext::ApiGatewayV2, context)
    }

    fn rest_api(authorizer: &Value, identity: &Value) -> Option<Scope> {
        let context = json!({
            "httpMethod": "POST", "authorizer": authorizer, "identity": identity,
        });
        with::<ApiGatewayProxyRequestContext>(RequestContext::ApiGatewayV1, context)
    }

    #[test]
    fn each_authorizer_names_its_principal() {
        let claims = json!({"iss": "https://issuer", "sub": "ada"});
        let ada = Some(Scope::new(["jwt", "https://issuer", "ada"]));
        assert_eq!(http_api(&json!({"jwt": {"claims": claims}})), ada);
        assert_eq!(rest_api(&json!({"claims": claims}), &json!({})), ada);
        assert_eq!(
            http_api(&json!({"iam": {"userId": "AIDA1"}})),
            Some(Scope::new(["iam", "AIDA1"]))
        );
        assert_eq!(
            rest_api(&json!({}), &json!({"user": "AIDA1", "apiKeyId": "k"})),
            Some(Scope::new(["iam", "AIDA1"]))
        );
        let own = json!({"principalId": "ada"});
        let by_function = Some(Scope::new(["authorizer", "ada"]));
        assert_eq!(http_api(&json!({"lambda": own})), by_function);
        assert_eq!(rest_api(&own, &json!({"apiKeyId": "k"})), by_function);
        assert_eq!(
            rest_api(&json!({}), &json!({"apiKeyId": "k"})),
            Some(Scope::new(["api-key", "k"]))
        );
    }

    /// Users of an identity pool of Cognito have one role, one session name, and so one user id.
    #[test]
    fn users_of_an_identity_pool_are_apart() {
        let role = "AROA1:CognitoIdentityCredentials";
        let rest = |id: &str| rest_api(&json!({}), &json!({"user": role, "cognitoIdentityId": id}));
        let http = |id: &str| {
            let cognito = json!({"amr": [], "identityId": id, "identityPoolId": "eu:pool"});
            http_api(&json!({"iam": {"userId": role, "cognitoIdentity": cognito}}))
        };
        let ada = Some(Scope::new(["cognito", "eu:ada"]));
        assert_eq!((rest("eu:ada"), http("eu:ada")), (ada.clone(), ada));
        assert_ne!(rest("eu:ada"), rest("eu:bob"));
        assert_ne!(http("eu:ada"), http("eu:bob"));
        // Who of them it is is not said: nobody, not all of them.
        assert_eq!((rest(""), http("")), (None, None));
        assert_eq!(http_api(&json!({"iam": {"userId": role}})), None);
    }

    /// A session of a role that people assume by name is one of them.
    #[test]
    fn sessions_of_a_role_are_apart() {
        let session = |name: &str| http_api(&json!({"iam": {"userId": format!("AROA1:{name}")}}));
        assert_eq!(session("ada"), Some(Scope::new(["iam", "AROA1:ada"])));
        assert_ne!(session("ada"), session("bob"));
    }

    #[test]
    fn nobody_is_nobody() {
        assert_eq!(http_api(&json!(null)), None);
        assert_eq!(http_api(&json!({"jwt": {"claims": {"sub": ""}}})), None);
        assert_eq!(http_api(&json!({"lambda": {"principalId": 7}})), None);
        assert_eq!(rest_api(&json!({}), &json!({"user": ""})), None);
        assert_eq!(principal(&http::Request::new(()).into_parts().0), None);
    }
}
