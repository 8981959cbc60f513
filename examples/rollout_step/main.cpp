/// @file
/// turnwise-step: what one training step decides about a batch of rollouts.

#include "batch.hpp"
#include "content_check.hpp"
#include "error.hpp"
#include "options.hpp"
#include "output.hpp"
#include "report.hpp"
#include "step.hpp"
#include "summary.hpp"

#include <turnwise/core/error.hpp>

#include <algorithm>
#include <exception>
#include <iostream>
#include <new>
#include <string>

namespace rollout_step {
namespace {

constexpr int success = 0;
constexpr int bad_input = 2;

void print(std::string const& text) {
  std::cout << text << std::flush;
  if (!std::cout) fail("standard output cannot be written");
}

void run(int argc, char const* const* argv) {
  command_line const given = parse_command_line(argc, argv);
  if (!given.help.empty()) {
    print(given.help);
    return;
  }
  step_options const options = make_options(given);
  if (options.output) check_output(*options.output, options.input);
  input_rows const rows = read_rows(options);
  turnwise::rollout const order = sort_rows(rows);
  check_content(rows, order, options);

  step_result const result = run_step(rows, order, options);
  step_summary const summary = summarise(rows, order, options, result);
  std::string const json = options.output || options.json ? json_report(summary, options, result) : std::string{};
  if (options.output) write_output(*options.output, result, json);
  print(options.json ? json : table_report(summary, options, result));
}

int report(std::string message) {
  std::ranges::replace(message, '\n', ' ');
  std::cerr << "turnwise-step: " << message << '\n';
  return bad_input;
}

}  // namespace
}  // namespace rollout_step

int main(int argc, char** argv) {
  try {
    rollout_step::run(argc, argv);
    return rollout_step::success;
  } catch (turnwise::precondition_error const& error) {
    // content_check finds what the library refuses first; should anything get past it, say how to read the index.
    return rollout_step::report(error.what() + std::string{" (turns counted by group, trajectory and turn index)"});
  } catch (std::bad_alloc const&) {
    return rollout_step::report("out of memory");
  } catch (std::exception const& error) {
    return rollout_step::report(error.what());
  }
}
