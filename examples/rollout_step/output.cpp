#include "output.hpp"

#include "error.hpp"
#include "npy.hpp"

#include <fstream>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace rollout_step {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void cannot(std::string_view what, fs::path const& path, std::error_code const& error) {
  fail("--output: cannot ", what, ' ', path.string(), ": ", error.message());
}

/// "out/" and "out" are one folder, but only the second has a name to put beside.
fs::path without_slash(fs::path const& path) {
  return path.has_filename() || path == path.root_path() ? path : path.parent_path();
}

/// A new folder that is gone again when this goes out of scope, unless it was moved away.
class temporary_folder {
 public:
  /// @param output  what an error names.
  temporary_folder(fs::path const& beside, fs::path const& output) {
    std::random_device random;
    std::error_code error;
    for (int attempt = 0; attempt < 16; ++attempt) {
      path_ = beside;
      path_ += ".tmp-" + std::to_string(random());
      if (fs::create_directory(path_, error)) return;
      if (error) break;
    }
    cannot("write to", output, error ? error : std::make_error_code(std::errc::file_exists));
  }
  temporary_folder(temporary_folder const&) = delete;
  temporary_folder& operator=(temporary_folder const&) = delete;
  ~temporary_folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  [[nodiscard]] fs::path const& path() const { return path_; }

 private:
  fs::path path_;
};

class result_writer {
 public:
  /// @param output  what an error names.
  result_writer(fs::path folder, fs::path output) : folder_(std::move(folder)), output_(std::move(output)) {}

  template <typename T>
  void array(std::string_view name, std::vector<T> const& values) {
    file(name, [&](std::ostream& stream) { write_npy(stream, std::span<T const>{values}); });
  }
  void text(std::string_view name, std::string const& content) {
    file(name, [&](std::ostream& stream) { stream << content; });
  }
  [[nodiscard]] std::vector<std::string> const& names() const { return names_; }

 private:
  template <typename Write>
  void file(std::string_view name, Write write) {
    fs::path const path = folder_ / name;
    std::ofstream stream(path, std::ios::binary);
    if (stream) write(stream);
    stream.close();
    if (!stream) fail("--output: cannot write ", name, " for ", output_.string());
    names_.emplace_back(name);
  }

  fs::path folder_, output_;
  std::vector<std::string> names_;
};

std::vector<std::string> write_files(fs::path const& folder, fs::path const& output, step_result const& result,
                                     std::string const& metrics_json) {
  result_writer writer(folder, output);
  writer.array("reward.npy", result.reward);
  writer.array("turn_return.npy", result.turn_return);
  writer.array("advantage.npy", result.advantage);
  writer.array("keep.npy", result.keep);
  writer.array("reason.npy", result.reason);
  writer.array("geometric_ratio.npy", result.geometric_ratio);
  writer.array("token_advantage.npy", result.token_advantage);
  writer.text("metrics.json", metrics_json);
  return writer.names();
}

}  // namespace

void check_output(fs::path const& output, fs::path const& input) {
  fs::path const folder = without_slash(output);
  std::error_code ignored;
  if (fs::is_directory(folder, ignored)) {
    if (fs::equivalent(folder, input, ignored))
      fail("--output: ", output.string(), " is the input folder, where reward.npy would replace the batch's own");
    if (fs::exists(folder / "turn_offsets.npy", ignored))
      fail("--output: ", output.string(), " holds a batch, whose rewards reward.npy would replace");
    return;
  }
  if (fs::exists(fs::symlink_status(folder, ignored))) fail("--output: ", output.string(), " is not a folder");
  fs::path const parent = folder.has_parent_path() ? folder.parent_path() : fs::path{"."};
  if (!fs::is_directory(parent, ignored))
    fail("--output: cannot create ", output.string(), ": ", parent.string(), " is not a folder");
}

void write_output(fs::path const& output, step_result const& result, std::string const& metrics_json) {
  fs::path const folder = without_slash(output);
  std::error_code error;
  bool const exists = fs::is_directory(folder, error);
  // Inside a folder that exists, so that moving never crosses file systems, as it might if the folder is a mount.
  temporary_folder const temporary(exists ? folder / "turnwise-step" : folder, output);
  auto const names = write_files(temporary.path(), output, result, metrics_json);
  if (!exists) {
    fs::rename(temporary.path(), folder, error);
    if (error) cannot("create", folder, error);
    return;
  }
  for (auto const& name : names)
    if (fs::is_directory(folder / name, error)) fail("--output: ", (folder / name).string(), " is a folder");
  for (auto const& name : names) {
    fs::rename(temporary.path() / name, folder / name, error);
    if (error) cannot("replace", folder / name, error);
  }
}

}  // namespace rollout_step
