// SPDX-License-Identifier: Apache-2.0
// flashjit completion: scripts for shells, made from the options as they are registered, so that none goes stale.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "cli/io/command.h"
#include "cli/io/streams.h"

namespace flashjit::cli {
namespace {

constexpr const char* kEpilog =
    R"(Prints what the shell has to read; 'cmake --install' puts it where shells look by themselves.

Examples:
  source <(flashjit completion bash)
  flashjit completion zsh > ~/.zsh/completions/_flashjit      # a directory of $fpath
  flashjit completion fish > ~/.config/fish/completions/flashjit.fish)";

// What may stand behind an option, or for a positional.
struct Values {
  bool are_files = false;
  std::vector<std::string> words;
};

struct Argument {
  std::vector<std::string> names;  // "-o" and "--output"; none of a positional
  std::string description;
  bool takes_value = false;
  Values values;
};

struct Node {
  std::string path, name, description;  // path: "flashjit cache ls"
  std::vector<Argument> arguments;
  std::vector<Node> below;
};

// By the word that stands for the value in --help.
Values values_of(const std::string& type) {
  Values values;
  values.are_files = type == "FILE";
  if (type == kArchType || type == kArchListType) {
    for (const Architecture& architecture : architectures()) values.words.push_back(architecture.name);
  }
  if (type.find('|') != std::string::npos) values.words = CLI::detail::split(type, '|');
  values.words.erase(std::remove(values.words.begin(), values.words.end(), kTextType), values.words.end());
  return values;
}

Node describe(const CLI::App& app, const std::string& path) {
  Node node{path, app.get_name(), app.get_description(), {}, {}};
  for (const CLI::Option* option : app.get_options()) {
    Argument argument{
        {}, option->get_description(), option->get_expected_max() != 0, values_of(option->get_type_name())};
    for (const std::string& name : option->get_snames()) argument.names.push_back("-" + name);
    for (const std::string& name : option->get_lnames()) argument.names.push_back("--" + name);
    node.arguments.push_back(std::move(argument));
  }
  for (const CLI::App* subcommand : app.get_subcommands({})) {
    node.below.push_back(describe(*subcommand, path + " " + subcommand->get_name()));
  }
  return node;
}

template <typename Visit>
void visit(const Node& node, Visit action) {
  action(node);
  for (const Node& each : node.below) visit(each, action);
}

// For single quotes of a shell that has this for an apostrophe among them, and for the brackets of zsh.
std::string quotable(const std::string& text, const char* apostrophe) {
  std::string quoted;
  for (const char c : text) {
    if (c == '\'') {
      quoted += apostrophe;
    } else {
      quoted += c == '[' ? '(' : c == ']' ? ')' : c;
    }
  }
  return quoted;
}
constexpr const char *kZshApostrophe = "'\\''", *kFishApostrophe = "\\'";

// The paths below the root, as patterns of a case: "a b" | "a c".
std::string quoted_paths(const Node& root, const char* separator) {
  std::vector<std::string> paths;
  visit(root, [&](const Node& node) {
    if (node.path != root.path) paths.push_back("'" + node.path + "'");
  });
  return fmt::format("{}", fmt::join(paths, separator));
}

// bash: a table by subcommand and the word before the cursor.
std::string bash_values(const Node& root) {
  std::string cases;
  visit(root, [&](const Node& node) {
    for (const Argument& argument : node.arguments) {
      if (!argument.takes_value || argument.names.empty()) continue;
      std::vector<std::string> patterns;
      for (const std::string& name : argument.names) patterns.push_back(fmt::format("'{} {}'", node.path, name));
      cases += fmt::format("    {})", fmt::join(patterns, " | "));
      if (argument.values.are_files) cases += " compopt -o default;";
      if (!argument.values.words.empty()) cases += fmt::format(" words='{}';", fmt::join(argument.values.words, " "));
      cases += " ;;\n";
    }
  });
  return cases;
}

std::string bash_words(const Node& root) {
  std::string cases;
  visit(root, [&](const Node& node) {
    std::vector<std::string> options, words;
    bool files = false;
    for (const Argument& argument : node.arguments) {
      options.insert(options.end(), argument.names.begin(), argument.names.end());
      if (!argument.names.empty()) continue;
      words.insert(words.end(), argument.values.words.begin(), argument.values.words.end());
      files = files || argument.values.are_files;
    }
    for (const Node& each : node.below) words.push_back(each.name);
    cases += fmt::format("    '{}') options='{}' words='{}'{} ;;\n", node.path, fmt::join(options, " "),
                         fmt::join(words, " "), files ? "; compopt -o default" : "");
  });
  return cases;
}

std::string bash_script(const Node& root) {
  constexpr const char* kScript = R"(# bash completion of flashjit, as 'flashjit completion bash' prints it
_flashjit() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD - 1]}}
  local command=flashjit options='' words='' i
  for ((i = 1; i < COMP_CWORD; ++i)); do
    case "$command ${{COMP_WORDS[i]}}" in
      {}) command+=" ${{COMP_WORDS[i]}}" ;;
    esac
  done
  # --option=value is three words here.
  if [[ $current == = ]]; then current=''; elif [[ $previous == = ]]; then previous=${{COMP_WORDS[COMP_CWORD - 2]}}; fi
  case "$command $previous" in
{}    *)
      case $command in
{}      esac
      [[ $current == -* ]] && words=$options
      ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -F _flashjit flashjit
)";
  return fmt::format(kScript, quoted_paths(root, " | "), bash_values(root), bash_words(root));
}

std::string zsh_action(const Values& values) {
  if (values.are_files) return "_files";
  return values.words.empty() ? " " : fmt::format("({})", fmt::join(values.words, " "));
}

std::string zsh_arguments(const Node& node) {
  std::string lines;
  int position = 0;
  for (const Argument& argument : node.arguments) {
    const std::string value = argument.takes_value ? ":value:" + zsh_action(argument.values) : "";
    if (argument.names.empty()) lines += fmt::format(" \\\n    '{}{}'", ++position, ":" + value);
    for (const std::string& name : argument.names)
      lines += fmt::format(" \\\n    '{}[{}]{}'", name, quotable(argument.description, kZshApostrophe), value);
  }
  return lines;
}

// A function for each subcommand, named like its path.
std::string zsh_function(const Node& node) {
  std::string name = node.path;
  std::replace(name.begin(), name.end(), ' ', '_');
  std::string text = fmt::format("_{}() {{\n", name);
  if (node.below.empty()) return text + fmt::format("  _arguments -S{}\n}}\n", zsh_arguments(node));
  text += fmt::format("  local curcontext=$curcontext state line\n  _arguments -C -S{} \\\n", zsh_arguments(node));
  text += "    '1: :->subcommand' '*:: :->arguments'\n  case $state in\n    subcommand)\n      local -a subcommands=(";
  for (const Node& each : node.below)
    text += fmt::format("\n        '{}:{}'", each.name, quotable(each.description, kZshApostrophe));
  text += ")\n      _describe subcommand subcommands ;;\n    arguments) case $line[1] in\n";
  for (const Node& each : node.below) text += fmt::format("      {}) _{}_{} ;;\n", each.name, name, each.name);
  return text + "    esac ;;\n  esac\n}\n";
}

std::string zsh_script(const Node& root) {
  std::string script = "#compdef flashjit\n# zsh completion of flashjit, as 'flashjit completion zsh' prints it\n";
  visit(root, [&](const Node& node) { script += zsh_function(node); });
  // Read as a function of $fpath it runs, sourced it registers itself.
  return script + "if [[ $funcstack[1] == _flashjit ]]; then _flashjit \"$@\"; else compdef _flashjit flashjit; fi\n";
}

std::string fish_lines(const Node& node) {
  const std::string begin = fmt::format("complete -c flashjit -n 'test (__flashjit_command) = \"{}\"'", node.path);
  std::string lines;
  for (const Argument& argument : node.arguments) {
    std::string line = begin;
    for (const std::string& name : argument.names)
      line += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
    if (!argument.names.empty()) line += fmt::format(" -d '{}'", quotable(argument.description, kFishApostrophe));
    if (argument.takes_value && !argument.names.empty()) line += " -r";
    line += argument.values.are_files ? " -F" : " -f";
    if (!argument.values.words.empty()) line += fmt::format(" -a '{}'", fmt::join(argument.values.words, " "));
    lines += line + "\n";
  }
  for (const Node& each : node.below)
    lines += fmt::format("{} -a {} -d '{}'\n", begin, each.name, quotable(each.description, kFishApostrophe));
  return lines;
}

std::string fish_script(const Node& root) {
  constexpr const char* kHead = R"(# fish completion of flashjit, as 'flashjit completion fish' prints it
function __flashjit_command
  set -l command flashjit
  for word in (commandline -opc)[2..-1]
    contains -- "$command $word" {}
    and set command "$command $word"
  end
  echo $command
end
complete -c flashjit -f
)";
  std::string script = fmt::format(kHead, quoted_paths(root, " "));
  visit(root, [&](const Node& node) { script += fish_lines(node); });
  return script;
}

}  // namespace

void add_completion(CLI::App& app, Command& command) {
  const auto shell = std::make_shared<std::string>();
  CLI::App* completion =
      add_subcommand(app, command, "completion", "Print a script that completes command lines in a shell", kEpilog);
  require(add_choice(completion, "SHELL", *shell, {"bash", "zsh", "fish"}, "The shell that is to complete"));
  run_when_chosen(completion, command, [&app, shell](const Session&) {
    const Node root = describe(app, app.get_name());
    write_output(*shell == "bash" ? bash_script(root) : *shell == "zsh" ? zsh_script(root) : fish_script(root));
    return kSuccess;
  });
}

}  // namespace flashjit::cli
