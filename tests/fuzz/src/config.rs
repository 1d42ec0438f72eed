//! Any text as a publisher's config: a plan, or an error that names the place. Parsing opens and changes
//! nothing.

use tickcast_publisher::Config;
use tickcast_publisher::internal::Plan;

/// Asserts these invariants of a config that can be parsed:
/// - Written with all defaults, it reads the same.
/// - For the service and for handlers it gives a plan with the typed values, or an error with a text.
pub fn config(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let config = match Config::parse(text) {
        Ok(config) => config,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    let written = config.to_json().to_string();
    let again = Config::parse(&written).expect("what was written can be read");
    assert_eq!(again, config, "{written}");
    for plan in [
        Plan::new(config.clone()),
        Plan::for_handlers(config.clone()),
    ] {
        match plan {
            Ok(plan) => {
                assert_eq!(plan.channels.len(), config.channels.len());
                assert_eq!(plan.config.channels, config.channels);
                assert!(
                    plan.channels
                        .iter()
                        .all(|channel| !channel.fan_outs.is_empty())
                );
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
}
