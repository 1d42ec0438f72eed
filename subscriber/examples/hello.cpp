// Prints every tick of a channel, and everything that happens to the stream.
#include <iostream>
#include <tickcast.hpp>

int main(int argc, char **argv) try {
    auto subscriber = tickcast::Subscriber::builder(argc > 1 ? argv[1] : "127.0.0.1:7400").channel("all").build();
    while (!subscriber.ended()) {
        subscriber.wait(std::chrono::milliseconds(100));
        subscriber.poll([](const tickcast::Item &item) {
            if (item.event()) std::cout << item.text() << '\n';
            else std::cout << item.position().record << ' ' << item.record()->instrument_id << '\n';
        });
    }
} catch (const tickcast::Error &error) {
    std::cerr << error.what() << '\n';
    return 1;
}
