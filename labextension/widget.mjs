// Bundles the sidebar as an anywidget's module and style sheet:   node widget.mjs FOLDER
// preact takes React's place: a saved notebook has the module in it, and React would make it five times as long.
import fs from 'node:fs';
import path from 'node:path';
import { rspack } from '@rspack/core';

const here = import.meta.dirname ?? path.dirname(new URL(import.meta.url).pathname);
const out = path.resolve(process.argv[2]);
const styles = ['base', 'ranks', 'report', 'text', 'alone'];
const shardview = path.join(here, '../jaxcluster/static/shardview');

const compiler = rspack({
  mode: 'production',
  devtool: false,
  entry: path.join(here, 'src/alone/widget.tsx'),
  experiments: { outputModule: true },
  output: { path: out, filename: 'widget.js', library: { type: 'module' }, clean: true },
  resolve: {
    extensions: ['.tsx', '.ts', '.js'],
    alias: {
      react$: 'preact/compat',
      [path.join(here, 'src/draw/shardview')]: path.join(shardview, 'index.js')
    }
  },
  module: {
    rules: [
      { include: shardview, sideEffects: false },
      {
        test: /\.tsx?$/,
        loader: 'builtin:swc-loader',
        options: { jsc: { parser: { syntax: 'typescript', tsx: true }, target: 'es2021' } }
      }
    ]
  }
});
compiler.run((error, stats) => {
  if (error || stats.hasErrors()) {
    console.error(error ?? stats.toString({ all: false, errors: true }));
    process.exit(1);
  }
  const texts = styles.map(name => fs.readFileSync(path.join(here, `style/${name}.css`), 'utf8'));
  const short = texts.join('').replace(/\/\*[^]*?\*\//g, '').replace(/\s+/g, ' ');
  fs.writeFileSync(path.join(out, 'widget.css'), short);
});
