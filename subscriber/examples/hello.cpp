// Prints every tick of a channel, and everything that happens to the stream.
#include <iostream>
#include <tickcast.hpp>

int main(int argc, char **argv) try {
    const char *publisher = argc > 1 ? argv[1] : "127.0.0.1:7400", *channel = argc > 2 ? argv[2] : "equities";
    auto subscriber = tickcast::Subscriber::builder(publisher).channel(channel).build();
    for (bool was_problem = false; !subscriber.ended();) {
        subscriber.wait(std::chrono::milliseconds(100));
        auto polled = subscriber.poll([](const tickcast::Item &item) {
            if (item.event()) std::cout << item.text() << '\n';
            else std::cout << item.position().record << ' ' << item.record()->instrument_id << '\n';
        });
        if (polled.problem() && !was_problem) std::cerr << subscriber.problem() << '\n';
        was_problem = polled.problem();
    }
} catch (const tickcast::Error &error) {
    std::cerr << error.what() << '\n';
    return 1;
}
