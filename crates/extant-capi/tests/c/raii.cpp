// The header in C++: handles that close themselves, errors that are thrown. Argument: an image that does not exist yet.
#include <extant.h>

#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

std::int64_t check(std::int64_t answer)
{
    if (answer < 0) {
        extant_error error{};
        error.size = sizeof error;
        extant_last_error(&error);
        throw std::runtime_error(std::string(error.name) + ": " + error.message);
    }
    return answer;
}

struct Close {
    void operator()(extant_file *file) const { extant_close(file); }
    void operator()(extant_fs *fs) const { extant_unmount(fs, EXTANT_UNMOUNT_FORCE); }
};

using Fs = std::unique_ptr<extant_fs, Close>;
using File = std::unique_ptr<extant_file, Close>;

File open(const Fs &fs, const std::string &path, std::uint32_t flags)
{
    extant_file *file = nullptr;
    check(extant_open(fs.get(), path.c_str(), flags, 0644, &file));
    return File(file);
}

} // namespace

int main(int, char **arguments)
{
    extant_build_options options{};
    options.size = sizeof options;
    options.image_bytes = 64 << 20;
    check(extant_mkfs(arguments[1], &options, nullptr));

    extant_mount_options mount{};
    mount.size = sizeof mount;
    mount.flags = EXTANT_MOUNT_WRITE;
    extant_fs *raw = nullptr;
    check(extant_mount(arguments[1], &mount, &raw));
    Fs fs(raw);

    std::vector<std::thread> threads;
    for (int n = 0; n < 3; n++)
        threads.emplace_back([&fs, n] {
            const std::string text(100000, static_cast<char>('a' + n));
            File file = open(fs, "/" + std::to_string(n), EXTANT_O_WRITE | EXTANT_O_CREATE);
            if (check(extant_write(file.get(), text.data(), text.size())) != 100000)
                std::terminate();
        });
    for (auto &thread : threads)
        thread.join();

    std::string back(100000, 0);
    check(extant_pread(open(fs, "/2", EXTANT_O_READ).get(), back.data(), back.size(), 0));
    if (back != std::string(100000, 'c'))
        return 1;
    try {
        open(fs, "/none", EXTANT_O_READ);
        return 1;
    } catch (const std::runtime_error &error) {
        std::cout << error.what() << '\n';
        if (std::string(error.what()).rfind("NotFound", 0) != 0)
            return 1;
    }
    fs.reset();
    return static_cast<int>(check(extant_check(arguments[1], nullptr, nullptr)));
}
