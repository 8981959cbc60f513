#include "files.hpp"

#include <turnwise/core/reason.hpp>

#include <algorithm>
#include <span>

namespace rollout_step {
namespace {

void append_cell(std::string& text, std::string const& cell, std::size_t columns) {
  text += cell + std::string(columns - std::min(columns, cell.size()), ' ');
}

void append_notes(std::string& text, std::string_view heading, std::span<file_note const> notes) {
  text += '\n' + std::string{heading} + '\n';
  for (auto const& note : notes) {
    append_cell(text, "  " + std::string{note.name}, 24);
    append_cell(text, std::string{note.type}, 10);
    append_cell(text, note.shape.empty() ? "" : '[' + std::string{note.shape} + ']', 9);
    text += std::string{note.meaning} + '\n';
  }
}

std::string reason_bits() {
  std::string text, line;
  for (std::size_t bit = 0; bit < turnwise::reason::names.size(); ++bit) {
    std::string const part = std::to_string(bit) + ' ' + std::string{turnwise::reason::names[bit]};
    if (line.size() + part.size() > 88) {
      text += line + ",\n";
      line.clear();
    }
    line += (line.empty() ? "      " : ", ") + part;
  }
  return text + line + '\n';
}

}  // namespace

std::string files_help() {
  std::string text = "Files: .npy, one dimension, little endian. S rows, one a turn, in any order; N tokens.\n";
  append_notes(text, "Read from --input:", input_files);
  append_notes(text, "Written to --output, in the order of the input:", output_files);
  return text +
         "\n"
         "  (1) All six or none. Needed unless reward.npy is there or the recipe is kernel_zero_proposer;\n"
         "      the profiling filter needs them in any case.\n"
         "  (2) For kernel_zero_proposer, where each row is a proposal. --attempts holds the coder's A turns:\n"
         "      turn_group, turn_trajectory, turn_index, compiled, correct, decoy [A] and, if present,\n"
         "      turn_valid. With reward.npy neither is read.\n"
         "  (3) By number:\n" +
         reason_bits();
}

std::vector<std::string> unknown_arrays(std::filesystem::path const& folder) {
  std::vector<std::string> unknown;
  for (auto const& entry : std::filesystem::directory_iterator(folder)) {
    std::string const name = entry.path().filename().string();
    bool const known = std::ranges::find(input_files, name, &file_note::name) != input_files.end();
    if (!known && name.ends_with(".npy")) unknown.push_back(name);
  }
  std::ranges::sort(unknown);
  return unknown;
}

}  // namespace rollout_step
