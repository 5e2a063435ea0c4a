# cmake -DROOT=<templates> -DFILES=<a,b> -DOUTPUT=<file.cpp> -P EmbedTemplates.cmake
# Writes a C++ source that defines generator::embedded_templates() with the text of each file. A string literal may be
# at most 65,536 characters long, and no template comes near. Lines that are comments stay empty: no kernel has them
# (generator/comments.h), and they would be a fifth of the text.
set(body "")
string(REPLACE "," ";" FILES "${FILES}")
foreach(path IN LISTS FILES)
  file(READ "${ROOT}/${path}" text)
  string(REGEX REPLACE "(^|\n) *//[^\n]*" "\\1" text "${text}")
  string(APPEND body "      {\"${path}\", R\"template(${text})template\"},\n")
endforeach()
file(WRITE "${OUTPUT}" "// Made by cmake/EmbedTemplates.cmake from templates/.
#include \"generator/templates.h\"

namespace flashjit::generator {

const Templates& embedded_templates() {
  static const Templates templates(Templates::Files{
${body}  });
  return templates;
}

}  // namespace flashjit::generator
")
