//! What the environment says of traces, by the names of OpenTelemetry. The SDK reads it itself, and takes a
//! default for what it does not understand: that is found here.

use std::time::Duration;

/// The collector's URL to which `/v1/traces` is added; and the one to which nothing is.
pub(crate) const OF_TRACES: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
/// What names a collector, the strongest first.
pub(crate) const ENDPOINTS: [&str; 2] = [OF_TRACES, "OTEL_EXPORTER_OTLP_ENDPOINT"];
/// `true`: these do not count.
pub(crate) const IS_DISABLED: &str = "OTEL_SDK_DISABLED";

const PROTOCOLS: [&str; 2] = [
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
    "OTEL_EXPORTER_OTLP_PROTOCOL",
];
const TIMEOUTS: [&str; 2] = [
    "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT",
    "OTEL_EXPORTER_OTLP_TIMEOUT",
];
const SAMPLER: &str = "OTEL_TRACES_SAMPLER";
const RATIO: &str = "OTEL_TRACES_SAMPLER_ARG";
const SAMPLERS: [&str; 6] = [
    "always_on",
    "always_off",
    "traceidratio",
    "parentbased_always_on",
    "parentbased_always_off",
    "parentbased_traceidratio",
];
const NUMBERS: [&str; 5] = [
    TIMEOUTS[0],
    TIMEOUTS[1],
    "OTEL_BSP_SCHEDULE_DELAY",
    "OTEL_BSP_MAX_QUEUE_SIZE",
    "OTEL_BSP_MAX_EXPORT_BATCH_SIZE",
];

type Variable<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Says what is not right, if anything is.
pub(super) fn check(variable: Variable<'_>) -> Result<(), String> {
    let protocol = PROTOCOLS
        .iter()
        .find_map(|name| Some((name, variable(name)?)));
    if let Some((name, protocol)) = protocol.filter(|(_, said)| said != "http/protobuf") {
        return Err(format!(
            "{name}: `{protocol}` is not spoken; write http/protobuf, for which collectors have the port \
             4318, or {IS_DISABLED}=true for no traces"
        ));
    }
    for name in NUMBERS {
        if let Some(said) = variable(name).filter(|said| said.parse::<u32>().is_err()) {
            return Err(format!("{name}: `{said}` is not a whole number"));
        }
    }
    let Some(sampler) = variable(SAMPLER) else {
        return Ok(());
    };
    if !SAMPLERS.contains(&sampler.as_str()) {
        let known = SAMPLERS.join(", ");
        return Err(format!("{SAMPLER}: `{sampler}` is none of {known}"));
    }
    let ratio = variable(RATIO).unwrap_or_default();
    let is_ratio = ratio
        .parse()
        .is_ok_and(|ratio| (0.0..=1.0).contains(&ratio));
    if sampler.ends_with("ratio") && !is_ratio {
        return Err(format!(
            "{RATIO}: `{ratio}` is not a number from 0 to 1, which {SAMPLER}={sampler} needs"
        ));
    }
    Ok(())
}

/// How long the collector may take for a batch.
pub(super) fn timeout(variable: Variable<'_>) -> Duration {
    let said = TIMEOUTS
        .iter()
        .find_map(|name| variable(name)?.parse().ok());
    Duration::from_millis(said.unwrap_or(10_000))
}

/// Whether it says what the gateway is called.
pub(super) fn names_service(variable: Variable<'_>) -> bool {
    let attributes = variable("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default();
    let mut names = attributes
        .split(',')
        .filter_map(|pair| pair.split('=').next());
    variable("OTEL_SERVICE_NAME").is_some() || names.any(|name| name.trim() == "service.name")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_sdk_would_pass_over_is_an_error_that_names_it() {
        let said = |pairs: &'static [(&str, &str)]| {
            check(&|name| {
                let pair = pairs.iter().find(|(known, _)| *known == name);
                pair.map(|(_, value)| (*value).to_owned())
            })
        };
        assert_eq!(said(&[]), Ok(()));
        assert_eq!(said(&[(SAMPLER, "parentbased_always_off")]), Ok(()));
        assert_eq!(said(&[(SAMPLER, "traceidratio"), (RATIO, "0.01")]), Ok(()));
        for wrong in [
            &[("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")] as &[_],
            &[("OTEL_EXPORTER_OTLP_TIMEOUT", "10s")],
            &[("OTEL_BSP_MAX_QUEUE_SIZE", "many")],
            &[(SAMPLER, "sometimes")],
        ] {
            let error = said(wrong).unwrap_err();
            assert!(
                error.starts_with(&format!("{}: `{}`", wrong[0].0, wrong[0].1)),
                "{error}"
            );
        }
        for ratio in ["", "1.5", "half"] {
            let error = check(&|name| match name {
                SAMPLER => Some("traceidratio".to_owned()),
                RATIO => Some(ratio.to_owned()),
                _ => None,
            });
            assert!(error.unwrap_err().starts_with(RATIO), "{ratio}");
        }
    }
}
