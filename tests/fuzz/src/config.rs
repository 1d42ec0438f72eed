//! Any text as a publisher's config: a plan, or an error that says where. Nothing is opened or
//! changed by it.

use tickcast_publisher::Config;
use tickcast_publisher::internal::Plan;

/// What can be parsed reads the same when it is written with all defaults, and is a plan that holds
/// what was typed, for the service and for handlers, or an error of more than nothing.
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
